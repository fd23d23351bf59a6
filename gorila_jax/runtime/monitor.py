"""Watches a run from outside: rows of metrics, checkpoints when they are due, and what stands still."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gorila_jax import checkpoints
from gorila_jax.config import to_json_dict
from gorila_jax.parameter_server import learning_rate
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.csv_table import Value
from gorila_jax.runtime.episodes import EpisodeWriter
from gorila_jax.runtime.metrics import MetricsWriter
from gorila_jax.runtime.progress import Bottleneck, Progress, bottleneck
from gorila_jax.runtime.system import System
from gorila_jax.types import Episode

LOOK_S = 5.0  # between two looks at whether anything moves
MAX_NEW_EPISODES = 100_000  # with so many unwritten a row comes before it is due: they are held in memory
STALL_S = 20.0  # without a step or an update, after which it is said who waits for what, and said again


class Monitor:
    """`tick()` is called often and does what is due; `checkpoint()` may also be called at the end."""

    def __init__(
        self,
        system: System,
        coordinator: Coordinator,
        metrics: MetricsWriter,
        episodes: EpisodeWriter,
        progress: Progress,
        checkpoint_directory: str,
        generation: int,
    ):
        self._system = system
        self._coordinator = coordinator
        self._metrics = metrics
        self._episodes = episodes
        self._progress = progress
        self._checkpoint_directory = checkpoint_directory
        self._generation = generation
        self._inserted_before = 0  # items, before the last resume
        self._started = self._row_time = self._checkpoint_time = time.monotonic()
        self._look_time = self._moved_time = self._said_time = self._started
        self._learning = False  # whether the first update has been seen
        self._counts: dict[str, int] = {}
        self._stall_counts: dict[str, int] = {}
        self._counts = self.counts()

    def restore(self, counters: Mapping[str, Any]) -> None:
        """Takes up the counters of a checkpoint; before the first tick."""
        self._coordinator.restore(counters)
        self._inserted_before = int(counters["inserted_items"])
        self._learning = int(counters["updates"]) > 0
        self._counts = self.counts()

    def counts(self) -> dict[str, int]:
        """What has been done since the run began, over all resumes."""
        steps = self._coordinator.steps
        return {
            "steps": steps,
            "frames": steps * self._system.spec.frames_per_step,
            "updates": self._system.server.status().version,
            "inserted_items": self._inserted_before + sum(w.inserted_items for w in self._system.writers),
            "sampled_items": sum(learner.samples for learner in self._system.learners),
        }

    def tick(self) -> None:
        now = time.monotonic()
        config = self._system.config
        due = now - self._row_time >= config.run.log_period_seconds
        if due or self._system.episodes.num_new >= MAX_NEW_EPISODES:
            self.write_row()
        if now - self._look_time >= LOOK_S:
            self._look_for_a_stall(now)
        if not self._learning and any(learner.updates for learner in self._system.learners):
            self._learning = True
            self._progress.note(f"first update at {self.counts()['frames']:,} frames")
        if now - self._checkpoint_time >= config.checkpoint.period_seconds:
            self.checkpoint()

    def write_row(self) -> dict[str, Value]:
        """Measures, writes and shows one row, and writes the games that have ended since the one before."""
        now, counts = time.monotonic(), self.counts()
        row, episodes, waiting = self._row(counts, now - self._row_time)
        self._row_time, self._counts = now, counts
        row = self._metrics.write(row | {"time": time.time(), "wall_seconds": now - self._started})
        self._episodes.write(episodes, row)
        self._progress.update(row, waiting.sentence)
        return row

    def checkpoint(self) -> str:
        """Saves everything that a resumed run needs; the path."""
        system, counts = self._system, self.counts()
        state = system.state() | {
            "counters": {**counts, "generation": self._generation},
            "config": to_json_dict(system.config),
        }
        path = checkpoints.save(
            self._checkpoint_directory,
            counts["frames"],
            state,
            keep=system.config.checkpoint.keep,
            write_extra=self._save_replay if system.config.replay.checkpoint else None,
        )
        self._checkpoint_time = time.monotonic()
        return path

    def _save_replay(self, directory: str) -> None:
        self._system.replay.save(f"{directory}/{REPLAY_DIRECTORY}")

    def _row(
        self, counts: Mapping[str, int], seconds: float
    ) -> tuple[dict[str, Value], list[Episode], Bottleneck]:
        system, before = self._system, self._counts
        per_second = {name: (counts[name] - before[name]) / max(seconds, 1e-9) for name in counts}
        tables = [system.replay.status(table) for table in range(system.replay.num_tables)]
        size = sum(table.size_items for table in tables)
        server = system.server.status()
        shares = system.waits.take(
            {"actor": len(system.actors), "environment": len(system.actors), "policy": len(system.actors),
             "pull": len(system.actors), "learner": len(system.learners)}
        )  # fmt: skip
        learning = [numbers for learner in system.learners if (numbers := learner.metrics())]
        filling = any(table.size_items < table.min_items for table in tables)
        ages = server.staleness_histogram
        lags = [server.version - a.parameter_version for a in system.actors if a.parameter_version >= 0]
        priorities = [priority_writer.counts() for priority_writer in system.priority_writers]
        waiting = bottleneck(
            shares["actor"],
            shares["learner"],
            environment_share=shares["environment"],
            policy_share=shares["policy"],
            pull_share=shares["pull"],
            filling=filling,
        )
        of_episodes, episodes = system.episodes.take(system.epsilons_at(server.version))
        row: dict[str, Value] = {
            "frames": counts["frames"],
            "steps": counts["steps"],
            "updates": counts["updates"],
            **of_episodes,
            "frames_per_second": per_second["frames"],
            "updates_per_second": per_second["updates"],
            "inserts_per_second": per_second["inserted_items"],
            "samples_per_second": per_second["sampled_items"],
            "samples_per_insert": self._steps_per_step(counts),
            "epsilon": _mean([float(np.mean(e)) for e in system.epsilons()]),
            "parameter_lag_updates": _mean(lags),
            "parameter_lag_updates_max": max(lags, default=None),
            "actor_environment_share": shares["environment"],
            "actor_policy_share": shares["policy"],
            "actor_wait_share": shares["actor"],
            "actor_pull_share": shares["pull"],
            "replay_size_items": size,
            "replay_fill_share": size / sum(table.capacity_items for table in tables),
            "priorities_written": sum(count.written for count in priorities) if priorities else None,
            "priorities_evicted": sum(count.evicted for count in priorities) if priorities else None,
            "priorities_lost": sum(c.nonfinite + c.dropped for c in priorities) if priorities else None,
            "loss": _mean([numbers["loss"] for numbers in learning]),
            "td_error": _mean([numbers["mean_abs_td_error"] for numbers in learning]),
            "gradient_norm": _mean([numbers["gradient_norm"] for numbers in learning]),
            "learner_wait_share": shares["learner"],
            "learning_rate": float(learning_rate(system.config.parameter_server)(server.version)),
            "staleness_mean": sum(age * n for age, n in enumerate(ages)) / sum(ages) if sum(ages) else None,
            "gradients_accepted": server.accepted,
            "gradients_stale": server.stale,
            "gradients_outlier": server.outlier,
            "gradients_nonfinite": server.nonfinite,
            "bottleneck": waiting.name,
        }
        return row, episodes, waiting

    def _steps_per_step(self, counts: Mapping[str, int]) -> float:
        """Steps trained on per step inserted, rows that only fill up sequences included in both."""
        layout = self._system.layout
        sampled = counts["sampled_items"] * layout.length_steps
        return sampled / max(1, counts["inserted_items"] * layout.stride_steps)

    def _look_for_a_stall(self, now: float) -> None:
        self._look_time, counts = now, self.counts()
        if counts != self._stall_counts:
            self._stall_counts, self._moved_time, self._said_time = counts, now, now
        elif now - self._said_time >= STALL_S:
            self._said_time = now
            self._progress.note(
                f"nothing has moved for {now - self._moved_time:.0f} s: {self._system.describe_waits()}"
            )


REPLAY_DIRECTORY = "replay"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
