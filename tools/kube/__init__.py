"""A Kubernetes API server on this machine, for `make cluster`."""
