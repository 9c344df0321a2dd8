"""Long-lived readers: fan-out of live entries, consumer leases, entries in flight."""
