"""Entries of a stream: publish, read, tail, export, columns."""
