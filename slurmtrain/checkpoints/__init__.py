"""Checkpoints: which there are, whether they are whole, and which is the newest that a launch may resume from."""
