"""Turns training workdirs into a picture and a record of how they learned.

    python -m benchmarks.learning_curve --workdir=runs/dqn,runs/gorila --name=pong --out=benchmarks/results

writes `<out>/<name>.png` (game score over frames and over minutes) and `<out>/<name>.json` (per run its
configuration, versions, curve and results). Every score is a raw return of training games, played while
exploring.
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import flags

from benchmarks.plots import plot_learning_curve
from benchmarks.report import make_table, report, run
from benchmarks.run_summary import WINDOW_EPISODES, summarise
from gorila_jax.types import ConfigError, GorilaError

WORKDIR = flags.DEFINE_list("workdir", [], "workdirs of training runs, separated by commas")
NAME = flags.DEFINE_string("name", "learning_curve", "of the files to write")
OUT = flags.DEFINE_string("out", "benchmarks/results", "directory to write them in")


def main() -> None:
    if not WORKDIR.value:
        raise ConfigError("--workdir names no training run")
    runs = [summarise(Path(workdir)) for workdir in WORKDIR.value]
    out = Path(OUT.value)
    try:
        out.mkdir(parents=True, exist_ok=True)
        plot_learning_curve(WORKDIR.value, out / f"{NAME.value}.png")
        record = json.dumps({"name": NAME.value, "runs": runs}, indent=1, allow_nan=False)
        (out / f"{NAME.value}.json").write_text(record + "\n", encoding="utf-8")
    except OSError as error:
        raise GorilaError(f"cannot write to --out={out}: {error}") from error
    labels = [f"{run['workdir']}: {run['configuration']['agent']}" for run in runs]
    rows = [
        [
            label,
            f"{run['frames']:,}",
            f"{run['updates']:,}",
            f"{run['minutes']:.1f}",
            _shown(run["samples_per_insert"]),
            _shown(run["final_return_mean"]),
            _shown(run["best_return_mean"]),
        ]
        for label, run in zip(labels, runs, strict=True)
    ]
    columns = ("run", "frames", "updates", "minutes", "samples/insert", "final mean", "best mean")
    long = ("curve", "configuration", "versions")
    figures = {
        label: {name: value for name, value in run.items() if name not in long}
        for label, run in zip(labels, runs, strict=True)
    }
    ratios = {
        f"{label}: samples per insert": run["samples_per_insert"]
        for label, run in zip(labels, runs, strict=True)
        if run["samples_per_insert"] is not None
    }
    title = f"{NAME.value}: mean raw returns of {WINDOW_EPISODES} training episodes; curves in {out}"
    report("learning_curve", make_table(title, columns, rows), ratios, figures)


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    run(main)
