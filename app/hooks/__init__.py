"""Webhooks that come in: whose they are, by their signatures, and what is kept of them.

Knows: schemes of signatures, the file that names hooks. Must never know: requests, entries, the engine.
"""
