"""`make soak`: a real gateway under everyday load for an hour, and what becomes of it meanwhile."""
