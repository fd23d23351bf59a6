"""What a workdir holds, as anyone may read it: beside a run that trains there, on another machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from gorila_jax import checkpoints
from gorila_jax.config import Config, from_json_dict
from gorila_jax.types import ConfigError, Parameters

CONFIG = "config.json"
CHECKPOINTS = "checkpoints"


class SavedRun(NamedTuple):
    """One checkpoint of a run, as far as playing needs it."""

    config: Config
    frames: int  # trained until then, over all actors
    version: int  # of the parameters: updates applied until then
    parameters: Parameters  # numpy arrays on the host


def load_run(workdir: str | os.PathLike[str], checkpoint: int | None = None) -> SavedRun:
    """Reads the newest checkpoint of a workdir, or the one of `checkpoint` frames. Takes no lock.

    Raises:
      ConfigError: there is no workdir, no (such) checkpoint, or one that this program cannot read.
      GorilaError: the checkpoint is damaged.
    """
    config = from_json_dict(load_experiment(workdir))
    directory = Path(workdir) / CHECKPOINTS
    if checkpoint is None:
        saved = checkpoints.restore_latest(directory)
        if saved is None:
            raise ConfigError(f"{workdir} holds no checkpoint yet: training writes them here")
    else:
        saved = checkpoints.restore(directory, checkpoint)
    frames, state = saved
    server = state["server"]
    return SavedRun(config, frames, int(min(server["versions"])), server["parameters"])


def load_experiment(workdir: str | os.PathLike[str]) -> dict[str, Any]:
    """The configuration that the workdir was made with, as nested dicts of JSON values.

    Raises:
      ConfigError: there is no workdir, or its config.json is damaged.
    """
    path = Path(workdir)
    if not path.is_dir():
        raise ConfigError(f"no workdir at {path}: {'it is a file' if path.exists() else 'it does not exist'}")
    if not (path / CONFIG).is_file():
        raise ConfigError(f"{path} is no workdir: it has no {CONFIG}")
    try:
        experiment = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / CONFIG} cannot be read: {error}") from error
    if not isinstance(experiment, dict):
        raise ConfigError(f"{path / CONFIG} holds no configuration")
    return experiment
