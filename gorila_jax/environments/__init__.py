"""Batches of environments: EnvPool's, and any `gymnasium.Env` that a user brings."""

from gorila_jax.environments.autoreset import check_autoreset
from gorila_jax.environments.make import environment_spec, make_environment
from gorila_jax.environments.names import is_atari, resolve_name

__all__ = ["check_autoreset", "environment_spec", "is_atari", "make_environment", "resolve_name"]
