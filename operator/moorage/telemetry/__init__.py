"""Metric names, trace attributes and log keys: one place each."""
