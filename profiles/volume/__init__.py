"""What a volume can do: whether other hosts may open it, its locks, and leases where those fail."""
