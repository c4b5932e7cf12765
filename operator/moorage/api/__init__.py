"""Resources as users write them, and what the processes say to each other."""
