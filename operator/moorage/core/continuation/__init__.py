"""N1 to N6: what to do when an agent says that it is done, goes in circles, or has filled its context. Pure."""
