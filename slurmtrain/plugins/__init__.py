"""Finding and loading extensions: rule packs, templates, hooks."""
