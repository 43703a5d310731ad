"""The closed failure taxonomy, as data, split by family."""
