"""Approvals (T6): what a run waits for a person to allow, and what became of it."""
