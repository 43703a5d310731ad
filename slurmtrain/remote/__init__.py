"""Remote storage through fsspec: objects that appear whole or not at all, at a bounded rate."""
