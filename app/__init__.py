"""The gateway: serves `engine` over HTTP, WebSocket and the Redis protocol, and keeps no streams itself."""
