"""The remote copy of a run: what belongs to it, what is there already, one pass, and who makes passes."""
