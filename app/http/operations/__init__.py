"""Operations: declaration, plans, binding of requests, refusals, and the router."""
