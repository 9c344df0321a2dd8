"""Durable Streams: streams at URLs of their own, of bytes or JSON messages, that are resumed by offsets.

Knows: the protocol (PROTOCOL.md of durable-streams/durable-streams); docs/durable-streams.md says what of it
is here. Must never know: where streams are, how a request came.
"""
