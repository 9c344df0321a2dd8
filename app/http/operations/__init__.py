"""Operations: declaration, binding of requests, refusals, and the table of the fast path."""
