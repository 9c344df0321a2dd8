"""What routes stand on: bodies of entries, negotiation, request IDs, origins, problems, middleware."""
