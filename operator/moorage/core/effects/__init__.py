"""Effects: identity, idempotency levels, closure, reconciliation."""
