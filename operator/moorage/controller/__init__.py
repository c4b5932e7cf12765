"""gather, decide, act: the operator."""
