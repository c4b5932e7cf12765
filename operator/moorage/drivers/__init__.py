"""One module per agent protocol, found by entry point."""
