"""Entries in bodies: published in JSON, NDJSON and forms; read as pages."""
