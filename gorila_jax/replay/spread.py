"""A learner's end of a global replay that is spread over several tables, each on a server of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gorila_jax.replay.table import check_priorities
from gorila_jax.types import Batch, ConfigError, Replay, SampleInfo, Sampler, Step

_KEY = np.dtype([("table", np.uint32), ("key", np.uint64)])  # keys are unique in their own table only


def spread_sampler(replay: Replay, tables: Sequence[int], batch_size: int) -> Sampler:
    """Draws batches of `batch_size` items from `tables` together, as many from each.

    Raises:
      ConfigError: the tables cannot share a batch equally.
    """
    if batch_size % len(tables):
        raise ConfigError(f"a batch of {batch_size} items cannot be shared equally by {len(tables)} tables")
    samplers = [replay.sampler(table, batch_size // len(tables)) for table in tables]
    return samplers[0] if len(samplers) == 1 else SpreadSampler(samplers)


class SpreadSampler:
    """Joins one part of a batch from each of S samplers. Implements `types.Sampler`.

    Every table gives B/S items, however many it holds. So an item is drawn with probability p / S, where p
    is its probability within its own table, out of all N items of all tables, and that is what `SampleInfo`
    says: importance weights made of it undo unequal priorities and unequal tables alike.

    One thread calls `sample`, another may call `update_priorities`.
    """

    def __init__(self, samplers: Sequence[Sampler]):
        self._samplers = tuple(samplers)
        self._parts: list[Batch | None] = [None] * len(samplers)  # of the next batch, as far as drawn

    def sample(self, timeout_s: float) -> Batch | None:
        """Items [B], the first B/S from the first table and so on; None when a table gave none in time.

        What the other tables gave is kept for the next call: their limiters have counted it as sampled.
        """
        # Asked once without waiting, all tables are at work while the first is waited for.
        for share_s in (0.0, timeout_s / len(self._samplers)):
            for place, sampler in enumerate(self._samplers):
                if self._parts[place] is None:
                    self._parts[place] = sampler.sample(share_s)
        parts = [part for part in self._parts if part is not None]
        if len(parts) < len(self._samplers):
            return None
        self._parts = [None] * len(parts)
        return _join(parts)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Sends each table its own keys, any of those that batches had; sums the counts of keys that left.

        When a server fails, the tables before its own have taken theirs.
        """
        own_keys, priorities = check_priorities(keys["key"], priorities)
        gone = 0
        for place, sampler in enumerate(self._samplers):
            here = keys["table"] == place
            if here.any():
                gone += sampler.update_priorities(own_keys[here], priorities[here])
        return gone

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()


def _join(parts: Sequence[Batch]) -> Batch:
    """Parts [B/S] to a batch [B]."""
    steps = Step(*(np.concatenate(column) for column in zip(*(part.steps for part in parts), strict=True)))
    infos = [part.info for part in parts]
    keys = np.empty(sum(len(info.keys) for info in infos), _KEY)
    keys["table"] = np.repeat(np.arange(len(infos)), [len(info.keys) for info in infos])
    keys["key"] = np.concatenate([info.keys for info in infos])
    probabilities = np.concatenate([info.probabilities for info in infos]) / len(infos)
    # Tables grow while a part is read: items at the same place of their parts were drawn at about one time.
    sizes = np.sum([info.table_sizes for info in infos], axis=0)
    state = np.concatenate([part.state for part in parts])
    return Batch(steps, state, SampleInfo(keys, probabilities, np.tile(sizes, len(infos))))
