"""Items of the in-process replay on disk: every row once, one array per field."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import numpy as np

from gorila_jax.replay.signature import Signature
from gorila_jax.types import Step


def save_items(directory: pathlib.Path, signature: Signature, items: Sequence[tuple[Step, ...]]) -> None:
    """Writes `<field>.npy` [rows, ...] and `items.npy` [items, W] int64, the numbers of each item's rows.

    Written through a memory map, so saving does not need the replay's memory a second time.
    """
    directory.mkdir(parents=True)
    places: dict[int, int] = {}  # id of a row to its number
    rows: list[Step] = []
    for item in items:
        for row in item:
            if places.setdefault(id(row), len(rows)) == len(rows):
                rows.append(row)
    window = len(items[0]) if items else 0
    numbers = np.array([[places[id(row)] for row in item] for item in items], np.int64)
    np.save(directory / "items.npy", numbers.reshape(len(items), window))
    for name, field in zip(signature._fields, signature, strict=True):
        path = directory / f"{name}.npy"
        if not rows:  # an empty file cannot be mapped
            np.save(path, np.zeros((0, *field.shape), field.dtype))
            continue
        column = np.lib.format.open_memmap(path, "w+", field.dtype, (len(rows), *field.shape))
        for number, row in enumerate(rows):
            column[number] = getattr(row, name)
        column.flush()


def load_items(directory: pathlib.Path, signature: Signature) -> list[tuple[Step, ...]]:
    """What `save_items` wrote. Items share their rows again, and no row keeps another one's memory alive."""
    columns = [
        np.load(directory / f"{name}.npy", mmap_mode="r" if field.shape else None)
        for name, field in zip(signature._fields, signature, strict=True)
    ]
    rows = [Step(*(np.array(column[number])[()] for column in columns)) for number in range(len(columns[0]))]
    return [tuple(rows[number] for number in item) for item in np.load(directory / "items.npy")]
