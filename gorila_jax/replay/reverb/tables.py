"""Reverb's tables: their names, their item signature and how they are built from a `TableSpec`."""

from __future__ import annotations

from typing import Any, NamedTuple

import reverb
import tensorflow as tf

from gorila_jax.replay.reverb.packing import Packing
from gorila_jax.replay.table import TableSpec
from gorila_jax.types import STORED_STATE, ConfigError


class TableName(NamedTuple):
    """A table's name says whose it is, so an insert that reaches another run's server fails there.

    The incarnation is new with every server that starts empty: inserts meant for a server that died do not
    enter the empty one that took its place. A restored server keeps its incarnation, for it has its items.
    """

    run_id: str
    incarnation: str
    number: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.incarnation}/{self.number}"

    @classmethod
    def parse(cls, name: str) -> TableName | None:
        """None when the name is no name of ours."""
        parts = name.rsplit("/", 2)
        if len(parts) != 3 or not parts[2].isdigit():
            return None
        return cls(parts[0], parts[1], int(parts[2]))


def check_servers(num_tables: int, num_servers: int, index: int = 0) -> None:
    """Raises ConfigError when a server would have no table, or `index` is no server's."""
    if num_servers > num_tables:
        raise ConfigError(
            f"{num_servers} replay servers for {num_tables} table(s): each needs a table of its own"
        )
    if not 0 <= index < num_servers:
        raise ConfigError(f"there is no replay server {index}: the {num_servers} are numbered from 0")


def item_signature(table: TableSpec) -> tuple[Any, ...]:
    """The `tf.TensorSpec` of an item's columns: its rows [W, row bytes] and, if any, its state [1, K]."""
    packing = Packing(table.signature)
    rows = tf.TensorSpec((table.window_steps, packing.row_bytes), tf.uint8, packing.layout)
    if not table.state_size:
        return (rows,)
    return rows, tf.TensorSpec((1, table.state_size), STORED_STATE, "state")


def make_table(table: TableSpec, name: TableName) -> Any:
    selectors = reverb.selectors
    limiter: Any = reverb.rate_limiters.MinSize(table.min_items)
    if table.samples_per_insert > 0:
        errors = (table.limiter.min_error, table.limiter.max_error)
        limiter = reverb.rate_limiters.SampleToInsertRatio(table.samples_per_insert, table.min_items, errors)
    return reverb.Table(
        str(name),
        sampler=selectors.Prioritized(table.priority_exponent) if table.proportional else selectors.Uniform(),
        remover=selectors.Fifo(),
        max_size=table.capacity_items,
        rate_limiter=limiter,
        signature=item_signature(table),
    )
