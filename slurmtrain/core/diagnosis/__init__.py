"""From facts and findings to one cause: selection, blame and wording. Pure."""
