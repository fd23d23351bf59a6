"""Items of the in-process replay on disk: every row once, one array per field."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gorila_jax.replay.signature import Signature
from gorila_jax.types import STORED_STATE, Step


class Item(NamedTuple):
    rows: tuple[Step, ...]  # W of them, shared with other items
    state: np.ndarray  # [K] float16


def save_items(directory: pathlib.Path, signature: Signature, state_size: int, items: Sequence[Item]) -> None:
    """Writes `<field>.npy` [rows, ...], `items.npy` [items, W] int64, the numbers of each item's rows, and
    `states.npy` [items, K].

    Written through a memory map, so saving does not need the replay's memory a second time.
    """
    directory.mkdir(parents=True)
    places: dict[int, int] = {}  # id of a row to its number
    rows: list[Step] = []
    for item in items:
        for row in item.rows:
            if places.setdefault(id(row), len(rows)) == len(rows):
                rows.append(row)
    window = len(items[0].rows) if items else 0
    numbers = np.array([[places[id(row)] for row in item.rows] for item in items], np.int64)
    np.save(directory / "items.npy", numbers.reshape(len(items), window))
    states = np.array([item.state for item in items], STORED_STATE)
    np.save(directory / "states.npy", states.reshape(len(items), state_size))
    for name, field in zip(signature._fields, signature, strict=True):
        path = directory / f"{name}.npy"
        if not rows:  # an empty file cannot be mapped
            np.save(path, np.zeros((0, *field.shape), field.dtype))
            continue
        column = np.lib.format.open_memmap(path, "w+", field.dtype, (len(rows), *field.shape))
        for number, row in enumerate(rows):
            column[number] = getattr(row, name)
        column.flush()


def load_items(directory: pathlib.Path, signature: Signature) -> list[Item]:
    """What `save_items` wrote. Items share their rows again, and no row keeps another one's memory alive."""
    columns = [
        np.load(directory / f"{name}.npy", mmap_mode="r" if field.shape else None)
        for name, field in zip(signature._fields, signature, strict=True)
    ]
    rows = [Step(*(np.array(column[number])[()] for column in columns)) for number in range(len(columns[0]))]
    numbers, states = np.load(directory / "items.npy"), np.load(directory / "states.npy")
    return [
        Item(tuple(rows[number] for number in numbers_of_item), state.copy())
        for numbers_of_item, state in zip(numbers, states, strict=True)
    ]
