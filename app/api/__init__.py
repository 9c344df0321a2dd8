"""The HTTP API: for each resource its models, its operations and their engine commands."""
