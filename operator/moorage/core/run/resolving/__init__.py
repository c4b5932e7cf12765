"""How each part of a run's spec is followed to what it is (O6); `moorage.core.run.resolve` puts them together."""
