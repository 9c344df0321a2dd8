"""Metrics: what is counted, and how it is written."""
