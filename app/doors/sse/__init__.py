"""Server-sent events: tails of streams and consumers of groups, as WHATWG HTML 9.2 has them."""
