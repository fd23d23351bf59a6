"""Flags that list whole numbers: --shards=1,2,4."""

from __future__ import annotations

from absl import flags

from gorila_jax.types import ConfigError


def whole_numbers(flag: flags.FlagHolder) -> list[int]:
    """The numbers of a list flag, from 1 on and each once. Raises ConfigError where they are none."""
    numbers = [int(text) for text in flag.value if text.isdigit()]
    if not numbers or 0 in numbers or len(set(numbers)) < len(flag.value):
        raise ConfigError(f"--{flag.name}={','.join(flag.value)}: whole numbers from 1 on, as in 1,2,4")
    return numbers
