"""Webhooks out: entries of a group are delivered to an endpoint, signed as Standard Webhooks says.

Knows: endpoints, signatures, addresses, when to try again. Must never know: how a gateway
has the entries of a group.
"""
