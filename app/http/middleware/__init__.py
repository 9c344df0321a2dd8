"""ASGI middleware: request IDs, paths, origins, compression."""
