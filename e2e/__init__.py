"""End to end: the cluster harness, the cases that run on it, faults and benchmarks."""
