"""Saving and restoring the state of a run: complete or absent, never half.

A checkpoint is a directory named by the frame count of the run, `<workdir>/checkpoints/<frames>/`:

    manifest.json   schema version, frames, and the shape of the tree with its plain values (counters, names)
    arrays/         every array of the tree, written by orbax
    ...             what `write_extra` put there, such as `replay/`

It is built under a hidden name and renamed when every byte of it is on disk, so that a process killed at
any moment leaves the previous checkpoint or the new one. The tree need not be known to read it back, and
holds nothing of the devices it came from. One process saves at a time (the workdir's lock sees to that);
any number may read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from gorila_jax.types import ConfigError, GorilaError

SCHEMA_VERSION = 1

_MANIFEST = "manifest.json"
_ARRAYS = "arrays"
_SAVING = ".saving-"  # under construction
_REPLACED = ".replaced-"  # the previous checkpoint of a frame count that is being saved again
_REMOVING = ".removing-"  # being deleted, perhaps no longer whole


def checkpoint_path(directory: str | os.PathLike[str], frames: int) -> str:
    """Where the checkpoint of `frames` lies below `directory` (the run's `checkpoints/`)."""
    return os.path.join(os.path.abspath(directory), str(frames))


def list_checkpoints(directory: str | os.PathLike[str]) -> list[int]:
    """Frame counts of the complete checkpoints below `directory`, ascending; it need not exist."""
    directory = os.path.abspath(directory)
    if not os.path.isdir(directory):
        return []
    found = set()
    for name in os.listdir(directory):
        # Between the two renames of a second save of the same frames the old one has only its other name.
        frames = name.removeprefix(_REPLACED)
        if frames.isascii() and frames.isdigit() and os.path.isfile(os.path.join(directory, name, _MANIFEST)):
            found.add(int(frames))
    return sorted(found)


def save(
    directory: str | os.PathLike[str],
    frames: int,
    state: Any,
    *,
    keep: int,
    write_extra: Callable[[str], None] | None = None,
) -> str:
    """Saves `state` as the checkpoint of `frames` and removes all but the `keep` newest ones.

    Args:
      directory: the run's `checkpoints/`; made if it is absent.
      frames: frames of the run so far; a checkpoint of the same count is replaced.
      state: nested dict (string keys), list and tuple of arrays (any shape, numeric or bool dtype), numpy
        scalars, int, float, bool, str and None. Arrays of jax are copied to the host.
      keep: how many checkpoints stay, at least 1, this one included.
      write_extra: called with the (temporary) directory of this checkpoint, to add files of its own to it.

    Returns:
      The path of the new checkpoint.

    Raises:
      GorilaError: it could not be written (disk full, no permission); earlier checkpoints are untouched.
      TypeError: `state` holds something else than the above; the message says where.
    """
    if keep < 1:
        raise ConfigError(f"checkpoint.keep={keep}: at least one checkpoint has to stay")
    directory = os.path.abspath(directory)
    arrays: dict[str, np.ndarray] = {}
    manifest = {"schema_version": SCHEMA_VERSION, "frames": frames, "tree": _encode(state, "state", arrays)}
    final = checkpoint_path(directory, frames)
    building = os.path.join(directory, f"{_SAVING}{frames}")
    try:
        os.makedirs(directory, exist_ok=True)
        _clean_up(directory)
        os.mkdir(building)
        if arrays:
            with _checkpointer() as checkpointer:
                checkpointer.save(os.path.join(building, _ARRAYS), arrays)
        if write_extra is not None:
            write_extra(building)
        with open(os.path.join(building, _MANIFEST), "w", encoding="utf-8") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        _sync_directory(building)
        if os.path.exists(final):
            os.rename(final, os.path.join(directory, f"{_REPLACED}{frames}"))
        os.rename(building, final)
        _sync_directory(directory)
    except GorilaError:
        _discard(directory, building)
        raise
    except Exception as error:  # orbax and tensorstore report a full disk by exceptions of many types
        _discard(directory, building)
        reason = str(error).split(" [source locations=")[0]  # of tensorstore's own code
        raise GorilaError(f"cannot save the checkpoint {final}: {reason}") from error
    try:
        _clean_up(directory)
        others = [old for old in list_checkpoints(directory) if old != frames]
        for old in others[: max(0, len(others) - (keep - 1))]:
            _remove(directory, str(old))
    except OSError as error:
        raise GorilaError(f"cannot remove old checkpoints below {directory}: {error}") from error
    return final


def restore(directory: str | os.PathLike[str], frames: int) -> tuple[int, Any]:
    """Reads the checkpoint of `frames` below `directory`.

    Returns:
      (frames, state) as they were saved: the same containers, arrays as numpy arrays on the host.

    Raises:
      ConfigError: there is no such checkpoint, or its schema is of another version.
      GorilaError: it is damaged or unreadable.
    """
    if frames not in list_checkpoints(directory):
        raise ConfigError(
            f"no checkpoint of {frames} frames below {directory}: there are "
            f"{list_checkpoints(directory) or 'none'}"
        )
    path = checkpoint_path(directory, frames)
    if not os.path.isdir(path):
        path = os.path.join(os.path.dirname(path), f"{_REPLACED}{frames}")
    try:
        with open(os.path.join(path, _MANIFEST), encoding="utf-8") as file:
            manifest = json.load(file)
        version = manifest["schema_version"]
        if version != SCHEMA_VERSION:
            raise ConfigError(
                f"checkpoint {path} has schema version {version}, this program reads "
                f"version {SCHEMA_VERSION}: use the version of the program that wrote it"
            )
        arrays: dict[str, np.ndarray] = {}
        if os.path.isdir(os.path.join(path, _ARRAYS)):
            with _checkpointer() as checkpointer:
                arrays = checkpointer.restore(os.path.join(path, _ARRAYS))
        return int(manifest["frames"]), _decode(manifest["tree"], arrays)
    except GorilaError:
        raise
    except Exception as error:  # whatever a damaged file makes json, orbax or tensorstore raise
        raise GorilaError(
            f"cannot read the checkpoint {path}: {error!r}. Remove that directory to use the one before it"
        ) from error


def restore_latest(directory: str | os.PathLike[str]) -> tuple[int, Any] | None:
    """`restore` of the newest checkpoint below `directory`, or None if there is none.

    A running trainer may remove a checkpoint while another process reads it; then the next newer one is read.
    """
    while found := list_checkpoints(directory):
        try:
            return restore(directory, found[-1])
        except GorilaError:
            if found[-1] in list_checkpoints(directory):
                raise
    return None


def _checkpointer() -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.PyTreeCheckpointHandler())


def _encode(node: Any, where: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """`node` as JSON; its arrays go into `arrays` and leave their key. Every node says its kind."""
    if node is None or (isinstance(node, (bool, int, float, str)) and not isinstance(node, np.generic)):
        return {"value": node}
    if isinstance(node, dict):
        wrong = [key for key in node if not isinstance(key, str)]
        if wrong:
            raise TypeError(f"{where} has keys that are no strings: {wrong[:3]}")
        return {"dict": {key: _encode(child, f"{where}/{key}", arrays) for key, child in node.items()}}
    if isinstance(node, list) or type(node) is tuple:
        children = [_encode(child, f"{where}/{i}", arrays) for i, child in enumerate(node)]
        return {"list" if isinstance(node, list) else "tuple": children}
    if not hasattr(node, "__array__"):
        raise TypeError(
            f"{where} is a {type(node).__name__}, which a checkpoint cannot hold: "
            "give dicts, lists, tuples, arrays and plain values"
        )
    array = np.asarray(node)
    # Extension types such as bfloat16 are of kind V, as are records, which have fields.
    if array.dtype.kind not in "biufcV" or array.dtype.names is not None:
        raise TypeError(f"{where} is an array of {array.dtype}, which a checkpoint cannot hold")
    if array.size == 0:  # orbax refuses those
        return {"empty": list(array.shape), "dtype": array.dtype.name}
    key = f"{len(arrays):05d}"
    arrays[key] = array
    return {"scalar" if isinstance(node, np.generic) else "array": key}


def _decode(node: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    if "value" in node:
        return node["value"]
    if "dict" in node:
        return {key: _decode(child, arrays) for key, child in node["dict"].items()}
    if "list" in node:
        return [_decode(child, arrays) for child in node["list"]]
    if "tuple" in node:
        return tuple(_decode(child, arrays) for child in node["tuple"])
    if "empty" in node:
        return np.empty(node["empty"], np.dtype(node["dtype"]))
    if "scalar" in node:
        return np.asarray(arrays[node["scalar"]])[()]
    return np.asarray(arrays[node["array"]])


def _clean_up(directory: str) -> None:
    """Removes what interrupted saves left behind, and keeps every complete checkpoint."""
    for name in os.listdir(directory):
        if name.startswith(_REPLACED):
            frames = name.removeprefix(_REPLACED)
            if os.path.exists(os.path.join(directory, frames)):
                _remove(directory, name)
            else:
                os.rename(os.path.join(directory, name), os.path.join(directory, frames))
        elif name.startswith((_SAVING, _REMOVING)):
            shutil.rmtree(os.path.join(directory, name))


def _remove(directory: str, name: str) -> None:
    """Removes a checkpoint in a way that nobody can take a half removed one for a whole."""
    doomed = os.path.join(directory, f"{_REMOVING}{name}")
    os.rename(os.path.join(directory, name), doomed)
    shutil.rmtree(doomed)


def _discard(directory: str, building: str) -> None:
    """Frees the disk after a failed save, as far as that is possible: the failure itself is being raised."""
    shutil.rmtree(building, ignore_errors=True)
    replaced = os.path.join(directory, os.path.basename(building).replace(_SAVING, _REPLACED))
    final = os.path.join(directory, os.path.basename(building).removeprefix(_SAVING))
    if os.path.isdir(replaced) and not os.path.exists(final):
        os.rename(replaced, final)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
