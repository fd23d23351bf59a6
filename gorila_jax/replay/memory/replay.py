"""Tables, writers and samplers of the in-process replay.

A row is one Python object however many items refer to it, and is freed with the last of them. Every table
has one lock; nothing here starts a thread.
"""

from __future__ import annotations

import collections
import json
import pathlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from gorila_jax.replay.memory import files
from gorila_jax.replay.memory.files import Item
from gorila_jax.replay.memory.sum_tree import SumTree
from gorila_jax.replay.signature import check_steps, one_row
from gorila_jax.replay.table import (
    TableSpec,
    appears_whole,
    check_priorities,
    check_priority,
    check_state,
    check_table,
    read_settings,
    write_settings,
)
from gorila_jax.types import NO_STATE, Batch, ReplayError, SampleInfo, Step, TableStatus

_BACKEND = "memory"


class MemoryReplay:
    """All tables of a run, in this process. Implements `types.Replay`; safe to use from many threads.

    The same seed and the same calls in the same order give the same draws, bit for bit.
    """

    def __init__(self, table: TableSpec, num_tables: int, seed: int):
        check_table(table, num_tables)
        self.num_tables = num_tables
        self._spec = table
        self._tables = [_Table(table, np.random.default_rng([seed, number])) for number in range(num_tables)]

    def writer(self, table: int, num_streams: int) -> MemoryWriter:
        return MemoryWriter(self._tables[table], num_streams)

    def sampler(self, table: int, batch_size: int) -> MemorySampler:
        return MemorySampler(self._tables[table], batch_size)

    def status(self, table: int) -> TableStatus:
        return self._tables[table].status()

    def save(self, directory: str) -> None:
        """Writes everything below `directory`, which must not exist. It appears whole or not at all.

        Items that the limiter has not admitted yet are not part of it.
        """
        with appears_whole(directory) as path:
            for number, table in enumerate(self._tables):
                table.save(path / f"table_{number}")
            write_settings(path, _BACKEND, self._spec, self.num_tables)

    def restore(self, directory: str) -> None:
        """Replaces all items, counters and the state of the draws. Writers begin new episodes after it."""
        path = pathlib.Path(directory)
        read_settings(path, _BACKEND, self._spec, self.num_tables)
        try:
            for number, table in enumerate(self._tables):
                table.restore(path / f"table_{number}")
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ReplayError(f"the replay saved in {path} is damaged: {error}") from error

    def close(self) -> None:
        """Wakes everyone who waits; later inserts and samples raise ReplayError."""
        for table in self._tables:
            table.close()


class MemoryWriter:
    """One actor's streams of rows into one table. Implements `types.ReplayWriter`; for one thread."""

    def __init__(self, table: _Table, num_streams: int):
        self.inserted_items = 0
        self.waiting_items = 0  # not admitted by the limiter yet; guarded by the table's lock
        self._table = table
        window = table.spec.window_steps
        self._streams: list[collections.deque[Step]] = [
            collections.deque(maxlen=window) for _ in range(num_streams)
        ]

    def append(self, stream: int, step: Step) -> None:
        self.append_each([stream], one_row(step))

    def append_each(self, streams: Sequence[int], steps: Step) -> None:
        check_steps(self._table.spec.signature, steps, len(streams))
        for stream, *row in zip(streams, *steps, strict=True):
            # Copied, because actors and environments reuse their buffers. Scalars become NumPy scalars.
            self._streams[stream].append(Step(*(np.array(value)[()] for value in row)))

    def insert(self, stream: int, priority: float, state: np.ndarray = NO_STATE) -> None:
        check_priority(priority)
        check_state(self._table.spec, state)
        rows = self._streams[stream]
        if len(rows) < self._table.spec.window_steps:
            raise ReplayError(
                f"an item needs {self._table.spec.window_steps} rows, but stream {stream} has {len(rows)} "
                "since its episode began"
            )
        self._table.insert(Item(tuple(rows), state.copy() if state.size else NO_STATE), float(priority), self)
        self.inserted_items += 1

    def end_episode(self, stream: int) -> None:
        self._streams[stream].clear()

    def ready(self, timeout_s: float) -> bool:
        return self._table.wait_until_admitted(self, timeout_s)

    def close(self) -> None:
        """What still waits for the limiter is the table's: it enters as soon as samples allow."""


class MemorySampler:
    """One learner's end of one table. Implements `types.Sampler`. Draws nothing ahead."""

    def __init__(self, table: _Table, batch_size: int):
        self._table = table
        self._batch_size = batch_size

    def sample(self, timeout_s: float) -> Batch | None:
        drawn = self._table.draw(self._batch_size, timeout_s)
        if drawn is None:
            return None
        items, info = drawn
        # Stacked outside the lock: rows never change, and the items hold them.
        rows = [row for item in items for row in item.rows]
        leading = (self._batch_size, self._table.spec.window_steps)
        columns = zip(*rows, strict=True)
        steps = [
            np.array(column, field.dtype).reshape(leading + field.shape)
            for column, field in zip(columns, self._table.spec.signature, strict=True)
        ]
        return Batch(Step(*steps), np.array([item.state for item in items]), info)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        return self._table.update_priorities(*check_priorities(keys, priorities))

    def close(self) -> None: ...


class _Table:
    """A ring of items: the item inserted as number `i` lies in slot `i % capacity` and has key `i`."""

    def __init__(self, spec: TableSpec, random: np.random.Generator):
        self.spec = spec
        self._random = random
        self._changed = threading.Condition()
        self._closed = False
        self._inserted = 0
        self._sampled = 0
        self._items: list[Item] = []
        self._priorities = np.zeros(spec.capacity_items, np.float64)
        self._weights = SumTree(spec.capacity_items) if spec.proportional else None
        self._waiting: collections.deque[tuple[Item, float, MemoryWriter]] = collections.deque()

    def status(self) -> TableStatus:
        limiter = self.spec.limiter
        with self._changed:
            size = len(self._items)
            return TableStatus(
                size_items=size,
                capacity_items=self.spec.capacity_items,
                min_items=self.spec.min_items,
                inserted_items=self._inserted,
                sampled_items=self._sampled,
                can_insert=not self._waiting and limiter.can_insert(size, self._inserted, self._sampled),
                can_sample=limiter.can_sample(1, size, self._inserted, self._sampled),
            )

    def insert(self, item: Item, priority: float, writer: MemoryWriter) -> None:
        """Queues an item and admits what the limiter allows, in the order of arrival."""
        with self._changed:
            self._check_open()
            writer.waiting_items += 1
            self._waiting.append((item, priority, writer))
            self._admit()

    def wait_until_admitted(self, writer: MemoryWriter, timeout_s: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: writer.waiting_items == 0 or self._closed, timeout_s)
            self._check_open()
            return writer.waiting_items == 0

    def draw(self, count: int, timeout_s: float) -> tuple[list[Item], SampleInfo] | None:
        """`count` items, drawn independently with replacement, or None when the limiter held them back."""
        limiter = self.spec.limiter
        with self._changed:
            self._check_open()
            self._changed.wait_for(
                lambda: (
                    self._closed or limiter.can_sample(count, len(self._items), self._inserted, self._sampled)
                ),
                timeout_s,
            )
            size = len(self._items)
            if self._closed or not limiter.can_sample(count, size, self._inserted, self._sampled):
                return None
            slots, probabilities = self._draw_slots(count)
            self._sampled += count
            info = SampleInfo(self._keys(slots), probabilities, np.full(count, size, np.int64))
            items = [self._items[slot] for slot in slots]
            self._admit()
            return items, info

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """Keys [N] uint64, priorities [N] float64; the last of equals holds. Returns how many are gone."""
        with self._changed:
            oldest = self._inserted - len(self._items)
            here = (keys >= oldest) & (keys < self._inserted)
            slots = (keys[here] % np.uint64(self.spec.capacity_items)).astype(np.int64)
            self._priorities[slots] = priorities[here]
            if self._weights is not None:
                self._weights.set(slots, self._weight(priorities[here]))
            return int(keys.size - here.sum())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def save(self, directory: pathlib.Path) -> None:
        with self._changed:  # items are only referred to: rows never change, and others wait meanwhile
            items = list(self._oldest_first(self._items))
            priorities = np.array(self._oldest_first(self._priorities[: len(items)]))
            state = {
                "inserted": self._inserted,
                "sampled": self._sampled,
                "random": self._random.bit_generator.state,
            }
        files.save_items(directory, self.spec.signature, self.spec.state_size, items)
        np.save(directory / "priorities.npy", priorities)
        (directory / "state.json").write_text(json.dumps(state))

    def restore(self, directory: pathlib.Path) -> None:
        state = json.loads((directory / "state.json").read_text())
        items = files.load_items(directory, self.spec.signature)
        priorities = np.load(directory / "priorities.npy")
        with self._changed:
            self._random.bit_generator.state = state["random"]
            self._inserted, self._sampled = state["inserted"], state["sampled"]
            for _, _, writer in self._waiting:
                writer.waiting_items -= 1
            self._waiting.clear()
            slots = np.arange(self._inserted - len(items), self._inserted) % self.spec.capacity_items
            self._items = [items[place] for place in np.argsort(slots)]
            self._priorities[:] = 0
            self._priorities[slots] = priorities
            if self._weights is not None:
                self._weights.set(np.arange(self.spec.capacity_items), np.zeros(self.spec.capacity_items))
                self._weights.set(slots, self._weight(priorities))
            self._changed.notify_all()

    def _admit(self) -> None:
        """Moves waiting items into the ring while the limiter allows it. The lock is held."""
        limiter = self.spec.limiter
        while self._waiting and limiter.can_insert(len(self._items), self._inserted, self._sampled):
            item, priority, writer = self._waiting.popleft()
            writer.waiting_items -= 1
            slot = self._inserted % self.spec.capacity_items
            if slot == len(self._items):
                self._items.append(item)
            else:
                self._items[slot] = item
            self._priorities[slot] = priority
            if self._weights is not None:
                self._weights.set_one(slot, priority**self.spec.priority_exponent)
            self._inserted += 1
        self._changed.notify_all()

    def _draw_slots(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Slots [count] int64 and the probability [count] float64 that each had."""
        size = len(self._items)
        # When all priorities are 0 nothing sets the items apart.
        if self._weights is None or self._weights.total == 0:
            return self._random.integers(size, size=count), np.full(count, 1 / size)
        slots = self._weights.draw(self._random.random(count))
        return slots, self._weights.get(slots) / self._weights.total

    def _keys(self, slots: np.ndarray) -> np.ndarray:
        capacity, newest = self.spec.capacity_items, self._inserted - 1
        return (newest - (newest - slots) % capacity).astype(np.uint64)

    def _weight(self, priorities: np.ndarray) -> np.ndarray:
        # One number at a time: NumPy's power of an array differs from a number's in the last bit, and a
        # priority must weigh the same however it came, or a restored replay would not draw the same items.
        return np.array([priority**self.spec.priority_exponent for priority in priorities.tolist()])

    def _oldest_first(self, ring: Any) -> Any:
        """A list or array over the slots, in the order of insertion."""
        if len(self._items) < self.spec.capacity_items:
            return ring
        start = self._inserted % self.spec.capacity_items
        if isinstance(ring, list):
            return ring[start:] + ring[:start]
        return np.concatenate([ring[start:], ring[:start]])

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayError("the replay has been closed")
