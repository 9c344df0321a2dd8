"""What stands before and behind each operation: request IDs, paths, origins, compression."""
