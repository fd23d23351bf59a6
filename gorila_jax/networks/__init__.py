"""Haiku networks: torsos, the recurrent core, and the one function that puts them together."""
