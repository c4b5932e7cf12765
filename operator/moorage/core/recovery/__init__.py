"""From journal to where to go on."""
