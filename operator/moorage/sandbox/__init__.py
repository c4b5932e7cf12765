"""ExecutionSandbox: pods on Kubernetes, processes on this machine."""
