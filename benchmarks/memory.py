"""What does remembering bring?

    python -m benchmarks.memory --task=cue_recall --agents=r2d2,drqn,apex --seeds=1,2,3,4,5

Trains each agent with each seed on a task whose observations do not tell all, for equally many steps and
without a frame stack, one run after the other, as `launchers.train` does; then scores 100 whole episodes,
greedily. Tasks: `cue_recall` and `hidden_cartpole` (benchmarks/memory_tasks.py), `catch`, which needs no
memory, and `minigrid` (EnvPool's MiniGrid-MemoryS7-v0).

Where the score of a run rises and falls until its end (`hidden_cartpole`, `minigrid`), its newest checkpoints
are compared by a few episodes each, and the best one is scored with other seeds: what is reported is not the
luck of the one that was picked. Every agent is given the same choice.

With `--results=DIR` it writes `<DIR>/memory_<task>.json` (scores, curves, configurations, versions) and
`.png`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags

from benchmarks import programs
from benchmarks.number_lists import whole_numbers
from benchmarks.plots import plot_learning_curve
from benchmarks.report import make_table, report, run
from benchmarks.run_summary import summarise
from benchmarks.training_flags import DIRECTORY, RESULTS, SEEDS, TRAIN_FLAGS
from gorila_jax.checkpoints import list_checkpoints
from gorila_jax.evaluation.saved_run import CHECKPOINTS
from gorila_jax.types import ConfigError, GorilaError


class Task(NamedTuple):
    environment: str
    total_frames: int  # of every run; a frame is a step here
    solved_at: float  # mean return
    settings: tuple[str, ...] = ()  # flags of every agent
    by_agent: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    candidates: int = 1  # checkpoints, the newest ones, of which the best is scored


# Replay keeps all, or nearly: an agent that has not met a mistake for long forgets how to prevent it.
RISES_AND_FALLS = (
    "--config.replay.capacity_steps=400000",
    "--config.learner.n_steps=5",
    "--config.parameter_server.optimizer_options=eps=1e-4",
    "--config.checkpoint.period_seconds=15",
)

TASKS = {
    "cue_recall": Task(
        "benchmarks.memory_tasks:cue_recall",
        100_000,
        0.95,
        by_agent={
            "drqn": ("--config.sequence.length_steps=16",),
        },
    ),
    "hidden_cartpole": Task(
        "benchmarks.memory_tasks:hidden_cartpole",
        400_000,
        400.0,
        (
            *RISES_AND_FALLS,
            "--config.parameter_server.learning_rate=1e-3",
            "--config.parameter_server.target_period_updates=100",
        ),
        by_agent={  # the rate falls to a tenth over the run, which has so many updates of each agent
            "r2d2": ("--config.parameter_server.learning_rate_decay_updates=10000",),
            "apex": ("--config.parameter_server.learning_rate_decay_updates=100000",),
        },
        candidates=10,
    ),
    "catch": Task("Catch-v0", 60_000, 0.95),
    "minigrid": Task(
        "MiniGrid-MemoryS7-v0",
        500_000,
        0.9,
        (
            "--config.env.observation_keys=image,direction",
            *RISES_AND_FALLS,
            "--config.parameter_server.learning_rate=5e-4",
        ),
        candidates=10,
    ),
}

TASK = flags.DEFINE_enum("task", "cue_recall", list(TASKS), "what to learn")
AGENTS = flags.DEFINE_list("agents", ["r2d2", "drqn", "apex"], "who learns it, separated by commas")
FRAMES = flags.DEFINE_integer("frames", None, "of every run; by default the task's", 1)
EPISODES = 100  # of a score
CHOICE_EPISODES = 20  # that checkpoints are compared by


class Run(NamedTuple):
    agent: str
    seed: int
    workdir: Path
    minutes: float  # from the start of the training process until its checkpoint was chosen
    choice: dict[int, float]  # mean returns of the checkpoints that were compared
    score: dict[str, Any]  # what `launchers.evaluate` said


def main() -> None:
    task, seeds = TASKS[TASK.value], whole_numbers(SEEDS)
    directory = Path(DIRECTORY.value or tempfile.mkdtemp(prefix="gorila_memory_"))
    if DIRECTORY.value and directory.exists():
        raise ConfigError(f"--directory={directory} exists already, and this measures runs from their start")
    runs = [learn(task, agent, seed, directory) for agent in AGENTS.value for seed in seeds]
    rows = [
        [f"{run.agent}, seed {run.seed}", f"{run.score['mean']:.3f}", f"{run.minutes:.1f}"] for run in runs
    ]
    solved = {
        f"{agent}_solved": statistics.mean(
            run.score["mean"] >= task.solved_at for run in runs if run.agent == agent
        )
        for agent in AGENTS.value
    }
    figures = {
        "task": TASK.value,
        "solved_at": task.solved_at,
        "total_frames": FRAMES.value or task.total_frames,
        "runs": [
            {"agent": run.agent, "seed": run.seed, "mean": run.score["mean"], "minutes": run.minutes}
            for run in runs
        ],
    }
    if RESULTS.value:
        write_files(Path(RESULTS.value), runs)
    title = f"{TASK.value}: mean return of {EPISODES} episodes; solved at {task.solved_at:g}"
    report("memory", make_table(title, ("run", "mean return", "minutes"), rows), solved, figures)


def learn(task: Task, agent: str, seed: int, directory: Path) -> Run:
    """One run and its score, each in a process of its own."""
    workdir = directory / f"{agent}_{seed}"
    begin = time.monotonic()
    programs.program(
        "train",
        f"--agent={agent}",
        f"--environment={task.environment}",
        f"--seed={seed}",
        f"--total_frames={FRAMES.value or task.total_frames}",
        f"--workdir={workdir}",
        "--config.env.frame_stack=1",
        f"--config.checkpoint.keep={task.candidates}",
        *task.settings,
        *task.by_agent.get(agent, ()),
        *TRAIN_FLAGS.value,
    )
    checkpoints = list_checkpoints(str(workdir / CHECKPOINTS))
    choice = {}
    if task.candidates > 1:
        choice = {
            checkpoint: programs.evaluate(workdir, checkpoint, CHOICE_EPISODES, 2000 + seed)["mean"]
            for checkpoint in checkpoints
        }
    best = max(choice, key=choice.__getitem__, default=checkpoints[-1])
    minutes = (time.monotonic() - begin) / 60
    score = programs.evaluate(workdir, best, EPISODES, 1000 + seed)
    done = Run(agent, seed, workdir, minutes, choice, score)
    print(
        f"{agent}, seed {seed}: {done.score['mean']:.3f}, {minutes:.1f} minutes", file=sys.stderr, flush=True
    )
    return done


def write_files(results: Path, runs: list[Run]) -> None:
    record = {
        "task": TASK.value,
        "runs": [
            summarise(run.workdir)
            | {"minutes": run.minutes, "checkpoints_compared": run.choice, "evaluation": run.score}
            for run in runs
        ],
    }
    try:
        results.mkdir(parents=True, exist_ok=True)
        plot_learning_curve([run.workdir for run in runs], results / f"memory_{TASK.value}.png")
        text = json.dumps(record, indent=1, allow_nan=False)
        (results / f"memory_{TASK.value}.json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise GorilaError(f"cannot write to --results={results}: {error}") from error


if __name__ == "__main__":
    run(main)
