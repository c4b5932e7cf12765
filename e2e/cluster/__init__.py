"""A real Kubernetes cluster on one machine, without Docker and without an image registry.

The programs are built from public Go modules and run as processes inside network namespaces of their own. Nothing
outside the state folder, the cache folder and those namespaces is touched; ``down`` takes all of it away again.
"""
