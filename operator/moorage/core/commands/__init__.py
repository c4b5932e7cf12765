"""Commands: what people ask of a run, whether it is taken on, and what becomes of it (M1-M3)."""
