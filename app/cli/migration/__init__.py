"""What `weir import` is made of: two servers that speak Redis, how a stream is read from either, its copy."""
