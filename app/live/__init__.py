"""Readers that stay: fan-out of live entries, leases of consumers, entries in flight."""
