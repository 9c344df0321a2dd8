"""HTTP on sockets: limits of a connection, and the fast path."""
