"""The actor: environments in, replay items out."""
