"""The protocol `weir.v1`: a pure session, its frames, and the connection that is its host."""
