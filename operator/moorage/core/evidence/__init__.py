"""The evidence of a run as one file, and what must hold in it."""
