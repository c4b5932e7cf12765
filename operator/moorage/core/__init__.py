"""PURE decisions: no I/O, clock, randomness, asyncio or logging."""
