"""The in-process replay: seeded, no server, the same items and rules as Reverb's."""

from gorila_jax.replay.memory.replay import MemoryReplay

__all__ = ["MemoryReplay"]
