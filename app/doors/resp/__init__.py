"""The RESP port: Redis clients over TCP or a Unix socket.

Knows: the wire of RESP2 and RESP3, connections and what belongs to one: its caller, its transaction, its
subscriptions.
Must never know: HTTP, how a stream command is parsed or run.
"""
