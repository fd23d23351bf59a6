"""Pictures of how runs learned, from their workdirs."""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gorila_jax.evaluation.saved_run import load_experiment
from gorila_jax.runtime.metrics import read_metrics
from gorila_jax.types import GorilaError


def plot_learning_curve(
    workdir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out_png: str | os.PathLike[str]
) -> None:
    """Draws the game score of one or several runs over frames and over minutes into `out_png`.

    Runs that differ in nothing but their seed have one colour and one entry in the legend. Where an agent's
    environments explore differently, the score of those that explore least is a dashed line beside the mean
    of all.

    Raises:
      GorilaError: a workdir has no metrics or no finished episode.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paths = [workdir] if isinstance(workdir, (str, os.PathLike)) else list(workdir)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    by_frames, by_minutes = figure.subplots(1, 2, sharey=True)
    experiments = [load_experiment(path) for path in paths]
    alike: dict[str, list[int]] = collections.defaultdict(list)  # the runs of each experiment, by number
    for number, experiment in enumerate(experiments):
        alike[_without_seed(experiment)].append(number)
    colors = {kind: f"C{number}" for number, kind in enumerate(alike)}
    environments: list[str] = []
    for number, (path, experiment) in enumerate(zip(paths, experiments, strict=True)):
        metrics = read_metrics(path)
        known = np.isfinite(metrics["episode_return_mean"])
        if not known.any():
            raise GorilaError(f"{path} has no finished episode to plot")
        score, least = metrics["episode_return_mean"], metrics["episode_return_least_exploring"]
        kind = _without_seed(experiment)
        seeds = ", ".join(str(_seed(experiments[other])) for other in alike[kind])
        label = f"{experiment.get('agent')}, seed{'s' if len(alike[kind]) > 1 else ''} {seeds}"
        shown = number == alike[kind][0]  # in the legend
        minutes, color = metrics["wall_seconds"] / 60, colors[kind]
        style = {"label": label if shown else None, "color": color}
        by_frames.plot(metrics["frames"][known], score[known], **style)
        by_minutes.plot(minutes[known], score[known], **style)
        apart = np.isfinite(least)
        if (score[apart] != least[apart]).any():
            epsilon = metrics["epsilon_least_exploring"][apart][-1]
            least_label = f"{label}: those that explore least (ε {epsilon:.2g})" if shown else None
            style = {"label": least_label, "color": color, "linestyle": "--"}
            by_frames.plot(metrics["frames"][apart], least[apart], **style)
            by_minutes.plot(minutes[apart], least[apart], **style)
        if (name := str(experiment.get("environment"))) not in environments:
            environments.append(name)
    by_frames.set_xlabel("frames of all actors")
    by_frames.xaxis.set_major_formatter(lambda value, _: _short(value))
    by_minutes.set_xlabel("minutes since the start")
    by_frames.set_ylabel("raw return per episode\n(mean of the last 100, while exploring)")
    for axes in (by_frames, by_minutes):
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.legend(*by_frames.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"{', '.join(environments)}: game score during training")
    figure.savefig(out_png, dpi=120)


def _seed(experiment: Mapping[str, Any]) -> Any:
    return experiment.get("run", {}).get("seed")


def _without_seed(experiment: Mapping[str, Any]) -> str:
    """Equal for runs that differ in nothing else."""
    return json.dumps({**experiment, "run": {**experiment.get("run", {}), "seed": None}}, sort_keys=True)


def _short(value: float) -> str:
    """12 000 000 as 12M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
