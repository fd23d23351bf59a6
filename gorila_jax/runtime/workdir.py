"""The directory of one run: what was run, with what, and everything that came out of it.

    config.json     the experiment: the whole configuration, the seed included; its presence makes a workdir
    versions.json   one record per start of the run: libraries, code, python, platform, devices
    checkpoints/    see `gorila_jax.checkpoints`
    metrics.csv     see `gorila_jax.runtime.metrics`
    episodes.csv    one line per finished game, see `gorila_jax.runtime.episodes`
    tensorboard/    the same as events for TensorBoard
    log.txt         everything that the display and the terminal showed, line by line
    .lock           held by the process that trains here

Nothing in it is overwritten by a run that does not continue it.
"""

from __future__ import annotations

import fcntl
import fnmatch
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from gorila_jax.config import Config, to_json_dict
from gorila_jax.evaluation.saved_run import CHECKPOINTS, CONFIG, load_experiment
from gorila_jax.types import ConfigError, GorilaError

VERSIONS = "versions.json"
LOG = "log.txt"
LOCK = ".lock"
_TEMPORARY = ".tmp"

_LIBRARIES = (
    "jax", "jaxlib", "numpy", "flax", "optax", "dm-haiku", "envpool", "dm-reverb", "tensorflow-cpu",
    "tensorflow", "orbax-checkpoint", "gymnasium", "ray", "tensorboardX", "rich",
)  # fmt: skip
_ABSENT = object()


class Workdir:
    """An opened, locked workdir. Close it, or use it as a context manager, to let others in."""

    def __init__(self, path: Path, resumed: bool, changed: dict[str, tuple[Any, Any]], lock: int) -> None:
        self.path = path
        self.resumed = resumed  # it existed before
        self.changed = changed  # fields that were allowed to differ and do: (old, new)
        self.checkpoints = str(path / CHECKPOINTS)
        self._lock: int | None = lock

    def discard(self) -> None:
        """Takes back a workdir that was made by this opening and in which nothing has run."""
        for name in (CONFIG, VERSIONS, LOG):
            (self.path / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Releases the lock; harmless when repeated."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Workdir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def open_workdir(
    path: str | os.PathLike[str], experiment: Mapping[str, Any], *, may_change: Iterable[str] = ()
) -> Workdir:
    """Makes a workdir for `experiment` at `path`, or opens the one of the same experiment again.

    Args:
      path: absent, an empty directory, or a workdir.
      experiment: the configuration as nested dicts of JSON values.
      may_change: dotted names of fields that a resumed run may set anew, with `*` as in shells: those that
        change how long a run goes on and how it is watched, not what it computes. `config.json` follows them.

    Raises:
      ConfigError: `path` is in use, holds another experiment (the message names the fields) or other files.
      GorilaError: it cannot be written.
    """
    experiment = json.loads(json.dumps(experiment))  # tuples become lists, as they will be when read back
    path = Path(path).absolute()
    try:
        _refuse_foreign(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise GorilaError(f"cannot use {path} as a workdir: {error}") from error
    try:
        _refuse_foreign(path)
        resumed = (path / CONFIG).exists()
        changed: dict[str, tuple[Any, Any]] = {}
        if resumed:
            changed = _compare(path, load_experiment(path), experiment, tuple(may_change))
        starts = _read_starts(path) if resumed else []
        _write_json(path / VERSIONS, [*starts, {"started_unix_seconds": round(time.time(), 3), **versions()}])
        if changed or not resumed:
            _write_json(path / CONFIG, experiment)  # last: from here on it is a workdir
    except OSError as error:
        os.close(lock)
        raise GorilaError(f"cannot use {path} as a workdir: {error}") from error
    except BaseException:
        os.close(lock)
        raise
    return Workdir(path, resumed, changed, lock)


def check_workdir(
    path: str | os.PathLike[str], experiment: Mapping[str, Any], *, may_change: Iterable[str] = ()
) -> None:
    """Raises ConfigError where `open_workdir` would because of what `path` holds. Changes nothing."""
    path = Path(path).absolute()
    _refuse_foreign(path)
    if (path / CONFIG).exists():
        _compare(path, load_experiment(path), json.loads(json.dumps(experiment)), tuple(may_change))


def versions() -> dict[str, Any]:
    """Everything that could explain why two runs of one configuration differ: JSON values only."""
    import jax  # initialises its devices, which is why this is called no earlier than needed

    libraries = {}
    for name in _LIBRARIES:
        try:
            libraries[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        package = importlib.metadata.version("gorila_jax")
    except importlib.metadata.PackageNotFoundError:
        package = None
    return {
        "gorila_jax": package,
        **_code_version(Path(__file__).resolve().parents[1]),
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "libraries": libraries,
    }


def _code_version(package: Path) -> dict[str, Any]:
    """Commit of the checkout that `package` is a tracked part of, and whether the files differ from it."""
    unknown = {"git_commit": None, "git_modified": None}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(package), *arguments],
                capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed copy may lie in a virtual environment inside somebody else's checkout.
    if git("ls-files", "--error-unmatch", "types.py") is None:
        return unknown
    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--", ".")
    return {"git_commit": commit, "git_modified": None if status is None else bool(status)}


def _refuse_foreign(path: Path) -> None:
    """Raises ConfigError unless `path` is absent, a workdir, or holds at most an interrupted start of one."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(f"--workdir={path} is a file; give a directory")
    if (path / CONFIG).exists():
        return
    ours = {LOCK, VERSIONS, VERSIONS + _TEMPORARY, CONFIG + _TEMPORARY}
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
    if foreign:
        raise ConfigError(
            f"--workdir={path} holds other files ({', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}) and is no workdir; give a new directory"
        )


def _lock(path: Path) -> int:
    """A descriptor that holds the lock of `path` while it is open; the kernel drops it with the process."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
            raise ConfigError(
                f"--workdir={path} is in use by pid {owner}; stop that run or give another --workdir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_starts(path: Path) -> list[Any]:
    """What `versions.json` holds of earlier starts; nothing where there is none."""
    file = path / VERSIONS
    if not file.exists():
        return []
    try:
        starts = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"{file} is damaged: {error}; move it away to go on without it") from error
    return list(starts)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _compare(
    path: Path, old: Mapping[str, Any], new: Mapping[str, Any], may_change: tuple[str, ...]
) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, all of them allowed to; raises ConfigError with those that are not."""
    before, after = _flatten(old), _flatten(new)
    names = [*after, *(name for name in before if name not in after)]
    # A field that is younger than the workdir had what is its default now.
    defaults = _flatten(to_json_dict(Config()))
    pairs = {
        name: (before.get(name, defaults.get(name, _ABSENT)), after.get(name, _ABSENT)) for name in names
    }
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    refused = [
        f"  {name}: {_show(was)} -> {_show(now)}"
        for name, (was, now) in changed.items()
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in may_change)
    ]
    if refused:
        raise ConfigError(
            f"--workdir={path} holds another experiment. These fields differ (old -> new):\n"
            + "\n".join(refused)
            + "\nGive another --workdir for the new experiment, or repeat the old one's flags to resume it"
        )
    return {
        name: (None if was is _ABSENT else was, None if now is _ABSENT else now)
        for name, (was, now) in changed.items()
    }


def _show(value: Any) -> str:
    return "(not set)" if value is _ABSENT else json.dumps(value, ensure_ascii=False)


def _write_json(path: Path, value: Any) -> None:
    """Replaces the file at `path` in one step."""
    temporary = path.with_name(path.name + _TEMPORARY)
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
