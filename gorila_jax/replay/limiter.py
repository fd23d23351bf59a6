"""How many samples may be drawn per inserted item: arithmetic only, no waiting.

The *error* is `inserted · samples_per_insert − sampled`. It must stay within
`min_items · samples_per_insert ± error_buffer`: an insert that would lift it above waits, a sample that
would push it below waits. Until the table holds `min_items`, every insert and no sample is allowed.
These are the rules of `reverb.rate_limiters.SampleToInsertRatio`, so both backends behave alike.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gorila_jax.types import ConfigError


class Limiter(NamedTuple):
    min_items: int
    samples_per_insert: float  # 0: no ratio is kept, only `min_items`
    error_buffer: float  # in samples

    @property
    def min_error(self) -> float:
        return self.min_items * self.samples_per_insert - self.error_buffer

    @property
    def max_error(self) -> float:
        return self.min_items * self.samples_per_insert + self.error_buffer

    def can_insert(self, size: int, inserted: int, sampled: int) -> bool:
        """Whether one more item may enter a table of `size` items after so many inserts and samples."""
        if self.samples_per_insert == 0 or size < self.min_items:
            return True
        return (inserted + 1) * self.samples_per_insert - sampled <= self.max_error

    def can_sample(self, count: int, size: int, inserted: int, sampled: int) -> bool:
        """Whether `count` items may be drawn together."""
        if size < self.min_items:
            return False
        if self.samples_per_insert == 0:
            return True
        return inserted * self.samples_per_insert - sampled - count >= self.min_error


def smallest_error_buffer(
    samples_per_insert: float, batch_size: int, prefetch_batches: int = 0, inserts_at_once: int = 1
) -> float:
    """The least error buffer, in samples, with which neither side can wait for ever for the other.

    At every value of the error either an actor can insert what one of its steps yields, or a learner can
    draw what it wants at once: this holds when the range, which is twice the buffer, has room for both.

    Args:
      samples_per_insert: above 0.
      batch_size: items per batch of one learner.
      prefetch_batches: batches that a learner draws ahead of the one it trains on.
      inserts_at_once: items that one actor inserts before it looks at `ready` again.
    """
    drawn = batch_size * (1 + prefetch_batches)
    inserted = samples_per_insert * inserts_at_once
    return max(1.0, samples_per_insert, (drawn + inserted) / 2)


def check_limiter(
    limiter: Limiter, batch_size: int = 1, num_tables: int = 1, samples_per_item: int = 1
) -> None:
    """Raises ConfigError for settings with which both sides would wait for ever.

    Args:
      limiter: of `num_tables` tables together; it counts items.
      batch_size: items that are drawn at once, from all of them.
      samples_per_item: what the message counts an item for.
    """
    if limiter.samples_per_insert == 0:
        return
    smallest = num_tables * smallest_error_buffer(limiter.samples_per_insert, batch_size // num_tables)
    if limiter.error_buffer < smallest:
        buffer, least = limiter.error_buffer * samples_per_item, smallest * samples_per_item
        drawn = f"{batch_size * samples_per_item} samples"
        if num_tables > 1:
            drawn += f" from {num_tables} tables"
        raise ConfigError(
            f"an error buffer of {buffer:g} samples is too small for batches of {drawn}: the actors and the "
            f"learner could wait for ever for each other; the least that works is {math.ceil(least)}"
        )
