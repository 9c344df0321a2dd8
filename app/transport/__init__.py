"""Between sockets and ASGI: the server as a process, limits of connections, the fast path, raw sockets."""
