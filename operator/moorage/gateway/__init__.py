"""The one door between a sandbox and the world, and the one writer of the journal."""
