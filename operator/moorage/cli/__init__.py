"""`moorage` and `kubectl moorage`."""
