"""C1, C2: what a run may use, judged from what it has used."""
