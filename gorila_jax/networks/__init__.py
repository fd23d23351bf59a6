"""Haiku networks: torsos, and the one function that builds a network."""
