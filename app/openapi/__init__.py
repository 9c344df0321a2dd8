"""OpenAPI and AsyncAPI documents, made from the declarations of routes and frames."""
