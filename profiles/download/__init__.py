"""Fetching a model's files: from where, whole, verified, and by one process at a time."""
