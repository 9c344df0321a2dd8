"""What `weir import` is made of: two servers that speak Redis, how streams are read from either, and the copy."""
