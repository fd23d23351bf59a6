"""Which observations and actions are possible, the same for every source of environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium.spaces
import numpy as np

from gorila_jax.types import ConfigError


def observation_layout(name: str, space: Any) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of one stored observation. float64 is stored as float32: networks compute in no more.

    Raises:
        ConfigError: anything but one array of numbers, or integers that 32 bits cannot hold.
    """
    if not isinstance(space, gymnasium.spaces.Box):
        named = ""
        if isinstance(space, gymnasium.spaces.Dict):
            keys = ",".join(space.spaces)
            named = f", and env.observation_keys={keys}, or some of these, does so for EnvPool's own"
        raise ConfigError(
            f"environment {name}: observations are {_kind(space)}; only one array of numbers (a Box) per "
            f"step is possible. A gymnasium wrapper can flatten them: name it module:factory{named}"
        )
    if 0 in space.shape:
        raise ConfigError(f"environment {name}: observations of shape {space.shape} hold no numbers")
    dtype = np.dtype(space.dtype)
    if dtype.kind in "iu" and dtype.itemsize == 8:
        info = np.iinfo(np.int32)
        if space.low.min() < info.min or space.high.max() > info.max:
            raise ConfigError(
                f"environment {name}: observations are {dtype} from {space.low.min()} to {space.high.max()}, "
                "but networks compute with 32 bits; a gymnasium wrapper can scale them to floats: name it "
                "module:factory"
            )
        dtype = np.dtype(np.int32)
    return tuple(space.shape), np.dtype(np.float32) if dtype == np.float64 else dtype


def named_layout(name: str, space: Any, keys: Sequence[str]) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of an observation whose named arrays are laid side by side; see `side_by_side`.

    Raises:
        ConfigError: no such arrays, or nothing of the kind.
    """
    if not isinstance(space, gymnasium.spaces.Dict):
        raise ConfigError(
            f"env.observation_keys={','.join(keys)}: environment {name} observes one array; leave it empty"
        )
    for key in keys:
        if key not in space.spaces:
            raise ConfigError(
                f"env.observation_keys names {key!r}, but {name} observes {', '.join(space.spaces)}"
            )
        if not isinstance(space[key], gymnasium.spaces.Box | gymnasium.spaces.Discrete):
            raise ConfigError(f"environment {name}: {key!r} is {_kind(space[key])}, which makes no numbers")
    return (sum(gymnasium.spaces.flatdim(space[key]) for key in keys),), np.dtype(np.float32)


def side_by_side(observation: Mapping[str, np.ndarray], space: Any, keys: Sequence[str]) -> np.ndarray:
    """The named arrays [E, ...] of a batch as vectors [E, N] float32, discrete ones one-hot."""
    columns = []
    for key in keys:
        values = np.asarray(observation[key])
        if isinstance(space[key], gymnasium.spaces.Discrete):
            values = values[:, None] == np.arange(space[key].start, space[key].start + space[key].n)
        columns.append(values.reshape(len(values), -1).astype(np.float32))
    return np.concatenate(columns, axis=1)


def action_count(name: str, space: Any) -> int:
    """How many actions there are. Raises ConfigError for anything but discrete ones."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ConfigError(
            f"environment {name}: actions are {_kind(space)}; only discrete actions (Discrete) are possible, "
            "since Q-learning compares the value of every action"
        )
    return int(space.n)


def checked_actions(actions: np.ndarray, num_environments: int, num_actions: int) -> np.ndarray:
    """`actions` as [E] int32. Raises ValueError for anything else: C++ would read past its tables."""
    actions = np.asarray(actions)
    if actions.shape != (num_environments,) or not np.issubdtype(actions.dtype, np.integer):
        raise ValueError(f"actions are {actions.dtype}{actions.shape}, not {num_environments} integers")
    if actions.min() < 0 or actions.max() >= num_actions:
        raise ValueError(f"actions go from 0 to {num_actions - 1}: {actions.tolist()}")
    return actions.astype(np.int32)


def _kind(space: Any) -> str:
    if isinstance(space, gymnasium.spaces.Box):
        return f"continuous, Box{tuple(space.shape)}"
    if isinstance(space, gymnasium.spaces.Space):
        return type(space).__name__
    return "several named arrays"
