"""How do others' DQN fare at the same game, on this machine, in the same time?

    python -m benchmarks.peers --environment=Pong-v5 --minutes=30 --json=peers.json --png=peers.png

plays one after the other, each alone on the machine: ours (or shows a run of ours that is there already,
`--workdir`), Stable-Baselines3's DQN and Tianshou's, each of these in a virtual environment of its own. All
see 84x84 grey frames, four of them stacked, one for every four of the emulator, without sticky actions, and
rewards clipped to [-1, 1]; the peers also press fire after a reset. The peers have the values that their
authors publish for Atari (`stable_baselines3.py`, `tianshou.py`), which are meant for 10 million steps.

Frames are the emulator's, four for every action. Seconds count from the moment when all is built and
training begins. A score is the raw return of whole training games, the mean of the last 100, as in
`metrics.csv`. Every agent explores in its own way meanwhile, so its epsilon stands beside its score, and
scores at unlike epsilons do not rank equally greedy players.

What is measured is kept in `--out`, also after Ctrl-C, and `--recorded` shows it again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from rich.table import Table

from benchmarks.peers.curves import (
    WINDOW_EPISODES,
    Curve,
    cut,
    plot,
    read_lines,
    read_workdir,
    summarise,
    thin,
)
from benchmarks.peers.installs import install
from benchmarks.peers.processes import Ended, OthersShare, run_process
from benchmarks.report import make_table, report, run
from gorila_jax.environments.names import is_atari, resolve_name
from gorila_jax.evaluation.saved_run import load_experiment
from gorila_jax.runtime.workdir import VERSIONS, versions
from gorila_jax.types import ConfigError, GorilaError

PEERS = {"stable_baselines3": "Stable-Baselines3 DQN", "tianshou": "Tianshou DQN"}
"""Titles by name; the driver is `<name>.py` beside this file, its requirements are `<name>.txt`."""
OURS = "ours"

AGENT = flags.DEFINE_string("agent", "apex", "of ours: a name, or your_module:recipe")
ENVIRONMENT = flags.DEFINE_string("environment", "Pong-v5", "an Atari game by EnvPool's name")
MINUTES = flags.DEFINE_float("minutes", 30.0, "that each run lasts", 0.0)
SEED = flags.DEFINE_integer("seed", 1, "of each run", 0)
NAMES = flags.DEFINE_list("peers", list(PEERS), f"which of {', '.join(PEERS)} play, separated by commas")
TRAIN = flags.DEFINE_bool("ours", True, "train ours too, unless --workdir names a run of it")
WORKDIR = flags.DEFINE_string("workdir", None, "a run of ours that is there already, to show instead")
VENVS = flags.DEFINE_string("venvs", None, "directory of the virtual environments; .peers in the project")
OUT = flags.DEFINE_string("out", None, "new directory for what is measured; runs/peers-<time> if not given")
RECORDED = flags.DEFINE_string("recorded", None, "an earlier run's --out to show again; nothing is played")
PNG = flags.DEFINE_string("png", None, "file that gets the picture; peers.png in --out if not given")

PROJECT = Path(__file__).resolve().parents[2]
SETUP = "setup.json"
ENDLESS_FRAMES = 10**12
SLACK_S = 600.0  # that a run may take longer than its minutes, to load, build and end
TELL_S = 60.0  # between two lines that say how far a run is
NOISE = 0.05  # of the machine taken by others, above which it is said
COLUMNS = (
    "run", "frames", "frames/s", "learning:\nframes/s", "learning:\nupdates/s", "games", "score", "epsilon"
)  # fmt: skip
RATES = ("frames_per_second", "learning_frames_per_second")


class Setup(NamedTuple):
    """What was measured; written to `--out`."""

    environment: str
    minutes: float
    seed: int
    workdir: str | None  # of ours, where it was there already
    outcomes: dict[str, dict[str, Any]]  # by name: status (ran, failed, stopped), error, others_cpu_share

    @property
    def game(self) -> str:
        return self.environment.removesuffix("-v5")


class Run(NamedTuple):
    label: str
    curve: Curve
    record: dict[str, Any]  # JSON values


def main() -> None:
    if RECORDED.value:
        directory, interrupted = Path(RECORDED.value), False
    else:
        directory, interrupted = measure()
    runs = show(directory)
    if interrupted:
        sys.exit(128 + signal.SIGINT)
    if not any(run.record["frames"] for run in runs.values()):
        sys.exit(1)


def measure() -> tuple[Path, bool]:
    """Plays everything; returns where the results are and whether it was interrupted."""
    setup = _setup()
    directory = Path(OUT.value or time.strftime("runs/peers-%Y%m%d-%H%M%S"))
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"--out={directory} is not empty; --recorded={directory} shows what it holds")
    directory.mkdir(parents=True, exist_ok=True)
    _write_setup(directory, setup)
    try:
        with _sigterm_interrupts():
            for name, play in _installed(directory, setup):
                setup.outcomes[name] = {"status": "stopped", "error": "interrupted"}
                _write_setup(directory, setup)
                setup.outcomes[name] = _outcome(name, play)
                _write_setup(directory, setup)
    except KeyboardInterrupt:
        _tell(f"interrupted; what was measured is in {directory}")
        return directory, True
    return directory, False


def _setup() -> Setup:
    unknown = [name for name in NAMES.value if name not in PEERS]
    if unknown:
        raise ConfigError(f"--peers: no {', '.join(unknown)}; possible: {', '.join(PEERS)}")
    environment = resolve_name(ENVIRONMENT.value)
    if not is_atari(environment):
        raise ConfigError(f"--environment={environment} is no Atari game, and the peers play no other")
    workdir = None
    if WORKDIR.value:
        workdir = str(Path(WORKDIR.value).absolute())
        _check_workdir(workdir, environment)
    return Setup(environment, MINUTES.value, SEED.value, workdir, {})


def _check_workdir(workdir: str, environment: str) -> None:
    played = load_experiment(workdir).get("environment", "")
    if resolve_name(played) != environment:
        raise ConfigError(f"--workdir={workdir} played {played}, the peers play {environment}")
    read_workdir(workdir)


Play = Callable[[], None]
"""One run, from start to end. Raises GorilaError when it fails."""


def _installed(directory: Path, setup: Setup) -> Iterator[tuple[str, Play]]:
    """The runs by name, after all installations; one of these that failed is the failure of its run."""
    pythons: dict[str, Path | GorilaError] = {}
    for name in NAMES.value:
        _tell(f"{name}: looking after its virtual environment")
        with (directory / f"{name}.log").open("w", encoding="utf-8") as log:
            try:
                venvs = Path(VENVS.value) if VENVS.value else PROJECT / ".peers"
                pythons[name] = install(venvs / name, Path(__file__).with_name(f"{name}.txt"), log)
            except (GorilaError, OSError) as error:
                pythons[name] = GorilaError(str(error))
    if TRAIN.value and not setup.workdir:
        yield OURS, partial(play_ours, directory, setup)
    for name, python in pythons.items():
        yield name, partial(play_peer, name, python, directory, setup)


def _outcome(name: str, play: Play) -> dict[str, Any]:
    _tell(f"{name}: begins")
    others, outcome = OthersShare(), {"status": "ran", "error": ""}
    try:
        play()
    except (GorilaError, OSError) as error:
        outcome = {"status": "failed", "error": str(error)}
        _tell(f"{name}: failed: {error}")
    share = others.share()
    if share > NOISE:
        _tell(f"{name}: other processes took {share:.0%} of the machine meanwhile: do not trust its speed")
    return outcome | {"others_cpu_share": round(share, 4)}


def play_peer(name: str, python: Path | GorilaError, directory: Path, setup: Setup) -> None:
    """Runs its driver, whose lines go to `<name>.jsonl`. Raises GorilaError when it fails."""
    if isinstance(python, GorilaError):
        raise python
    command = [str(python), "-m", f"{__package__}.{name}", f"--game={setup.game}"]
    command += [f"--minutes={setup.minutes}", f"--seed={setup.seed}"]
    log = directory / f"{name}.log"
    with (directory / f"{name}.jsonl").open("w", encoding="utf-8") as lines, log.open("a") as errors:
        ended = run_process(command, PROJECT, lines, errors, _Clock(name, setup.minutes).is_late)
    _judge(ended, ended.exit_code == 0, log)


def play_ours(directory: Path, setup: Setup) -> None:
    """Trains in the workdir `ours` until its own clock says that the time is over. Raises GorilaError."""
    workdir, log = directory / OURS, directory / f"{OURS}.log"
    command = [sys.executable, "-m", "launchers.train", f"--agent={AGENT.value}", f"--seed={setup.seed}"]
    command += [f"--environment={setup.environment}", f"--workdir={workdir.absolute()}"]
    command += [f"--total_frames={ENDLESS_FRAMES}"]
    clock, in_time = _Clock(OURS, setup.minutes), False

    def is_over() -> bool:
        nonlocal in_time
        with contextlib.suppress(GorilaError):  # no metrics yet
            in_time = any(read_workdir(workdir)["seconds"] >= 60 * setup.minutes)
        return in_time or clock.is_late()

    with log.open("w", encoding="utf-8") as errors:
        ended = run_process(command, PROJECT, errors, errors, is_over, signal.SIGINT)
    if in_time:
        ended = ended._replace(asked=False)
    _judge(ended, ended.exit_code in (0, 128 + signal.SIGINT), log)


def _judge(ended: Ended, good: bool, log: Path) -> None:
    if ended.asked:
        raise GorilaError(f"it had not ended {SLACK_S / 60:g} minutes after its time, see {log.name}")
    if not good:
        said = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        last = said[-1][:200] if said else "it said nothing"
        raise GorilaError(f"{last} (exit code {ended.exit_code}, see {log.name})")


class _Clock:
    """Says how far a run is, and whether it is long overdue."""

    def __init__(self, name: str, minutes: float) -> None:
        self._name, self._minutes = name, minutes
        self._began = self._told = time.monotonic()

    def is_late(self) -> bool:
        now = time.monotonic()
        if now - self._told >= TELL_S:
            self._told = now
            _tell(f"{self._name}: {(now - self._began) / 60:.0f} of {self._minutes:g} minutes")
        return now - self._began > 60 * self._minutes + SLACK_S


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _write_setup(directory: Path, setup: Setup) -> None:
    (directory / SETUP).write_text(json.dumps(setup._asdict(), indent=1) + "\n", encoding="utf-8")


def _read_setup(directory: Path) -> Setup:
    try:
        return Setup(**json.loads((directory / SETUP).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{directory} holds no run of this benchmark: {error}") from error


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def show(directory: Path) -> dict[str, Run]:
    """Prints the table and the record of what lies in `directory`, and draws the picture."""
    setup = _read_setup(directory)
    runs = read_runs(directory, setup)
    path = Path(PNG.value) if PNG.value else directory / "peers.png"
    title = f"{setup.environment}, {setup.minutes:g} minutes each"
    try:
        plot({run.label: run.curve for run in runs.values()}, title, path)
    except OSError as error:
        raise GorilaError(f"cannot write --png={path}: {error}") from error
    settings = {"environment": setup.environment, "minutes": setup.minutes, "seed": setup.seed}
    figures = {"settings": settings} | {name: run.record for name, run in runs.items()}
    report("peers", table(title, list(runs.values())), ratios(runs), figures)
    return runs


def read_runs(directory: Path, setup: Setup) -> dict[str, Run]:
    """Everything that was begun, by name; ours first."""
    runs: dict[str, Run] = {}
    workdir = WORKDIR.value or setup.workdir
    if workdir:
        _check_workdir(workdir, setup.environment)
        outcome: dict[str, Any] = {"status": "ran before", "error": "", "others_cpu_share": None}
        runs[OURS] = read_our_run(Path(workdir), setup, outcome)
    for name, outcome in setup.outcomes.items():
        if name == OURS and not workdir:
            runs[OURS] = read_our_run(directory / OURS, setup, outcome)
        elif name != OURS:
            path = directory / f"{name}.jsonl"
            lines = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
            story = read_lines(lines)
            record = {"settings": story.settings, "versions": story.versions}
            runs[name] = _run(PEERS.get(name, name), story.curve, setup, outcome, record)
    return runs


def read_our_run(workdir: Path, setup: Setup, outcome: Mapping[str, Any]) -> Run:
    """A run of ours; one that failed before its first row has none."""
    try:
        experiment, curve = load_experiment(workdir), read_workdir(workdir)
    except GorilaError:
        return _run(OURS, read_lines([]).curve, setup, outcome, {})
    path = workdir / VERSIONS
    starts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    settings = {name: experiment.get(name) for name in ("agent", "preset", "environment")}
    settings["seed"] = experiment.get("run", {}).get("seed")
    record = {"settings": settings, "versions": starts[-1] if starts else {}}
    return _run(f"{experiment.get('agent')} ({OURS})", curve, setup, outcome, record)


def _run(
    label: str, curve: Curve, setup: Setup, outcome: Mapping[str, Any], record: Mapping[str, Any]
) -> Run:
    curve = cut(curve, setup.minutes)
    return Run(label, curve, {**outcome, **summarise(curve), **record, "curve": thin(curve)})


def ratios(runs: Mapping[str, Run]) -> dict[str, float]:
    """Our speed over each peer's, where both were measured on one machine."""
    if OURS not in runs or not _is_of_this_machine(runs[OURS].record):
        return {}
    ours = runs[OURS].record
    return {
        f"{OURS}_over_{name}_{rate}": ours[rate] / run.record[rate]
        for name, run in runs.items()
        for rate in RATES
        if name != OURS and ours.get(rate) and run.record.get(rate)
    }


def _is_of_this_machine(record: Mapping[str, Any]) -> bool:
    """Whether ours was trained beside the peers, or at least on a machine of the same kind."""
    if record["status"] != "ran before":
        return True
    here, there = versions(), record.get("versions", {})
    return all(there.get(name) == here[name] for name in ("platform", "cpu_count", "devices"))


def table(title: str, runs: Sequence[Run]) -> Table:
    """One row a run; beneath them, why one failed or stopped."""
    made = make_table(
        f"{title}, one after the other, each with its own settings. Learning: from the first update on. "
        f"Score: mean raw return of the last {WINDOW_EPISODES} training games; exploration differs, its mean "
        "epsilon in these games stands beside it",
        COLUMNS,
        [table_row(run) for run in runs],
    )
    made.columns[0].no_wrap = True
    made.caption = "\n".join(
        f"{run.label} {run.record['status']} after {run.record['minutes']:.1f} minutes: {run.record['error']}"
        for run in runs
        if run.record["error"]
    )
    made.caption_justify = "left"
    return made


def table_row(run: Run) -> list[str]:
    record = run.record
    if not record["frames"]:
        return [run.label, *[""] * (len(COLUMNS) - 1)]
    return [
        run.label,
        f"{record['frames']:,}",
        _shown(record["frames_per_second"], ",.0f"),
        _shown(record["learning_frames_per_second"], ",.0f"),
        _shown(record["learning_updates_per_second"], ",.1f"),
        f"{record['episodes']:,}",
        _shown(record["final_return_mean"], ".2f"),
        _shown(record["final_epsilon_mean"], ".2f"),
    ]


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


if __name__ == "__main__":
    run(main)
