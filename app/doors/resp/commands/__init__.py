"""The commands about connections and the server, a module for each kind.

Knows: what each command takes and replies. Must never know: sockets, commands on streams.
"""
