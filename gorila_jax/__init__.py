"""Distributed deep Q-learning in JAX: one architecture, and every agent is a setting of it."""
