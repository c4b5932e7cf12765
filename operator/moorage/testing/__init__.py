"""Public: fakes, clock, stand-in model server, history loader."""
