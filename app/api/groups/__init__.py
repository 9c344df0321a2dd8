"""Consumer groups: groups, consumers, pending entries, claims, dead letters."""
