"""The protocol `weir.v1`: a pure session, its frames and effects, and the connection that performs them."""
