"""HTTP on sockets: limits of a connection, heads that were seen before, one request and its answer."""
