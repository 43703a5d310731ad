"""The scene of a failure: what collectors found on each node before the allocation was gone."""
