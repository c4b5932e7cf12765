"""How each kind of record changes the state of a run: the handlers of `moorage.core.run.reducer`."""
