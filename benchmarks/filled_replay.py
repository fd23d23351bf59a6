"""A replay full of random play, for a learner, and what a step of it takes when it is saved."""

from __future__ import annotations

import collections
import contextlib
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gorila_jax.actor.accumulator import ActorStep
from gorila_jax.environments import make_environment
from gorila_jax.replay import TableSpec, make_replay, step_signature
from gorila_jax.runtime.plan import Plan, state_size
from gorila_jax.runtime.threads import call_yielding
from gorila_jax.types import GorilaError, Replay, ReplayWriter, Sampler

PATIENCE_S = 60.0
ROWS_ALONE = 16  # of an item, where rows are saved without overlap


class Filled(NamedTuple):
    """A replay full of random play, and its ends for a learner."""

    replay: Replay
    sampler: Sampler
    other: Sampler  # of the stand-in
    steps: int  # that were played


def fill_replay(plan: Plan, stack: contextlib.ExitStack) -> Filled:
    """The replay of a run, in threads that yield as there, filled with random play."""
    run, size = plan.config.run, plan.config.learner.batch_size

    def build() -> tuple[Replay, Sampler, Sampler]:
        replay = make_replay(plan.backend, plan.table, 1, run_id=uuid.uuid4().hex)
        return replay, replay.sampler(0, size), replay.sampler(0, size)

    replay, sampler, other = call_yielding(run.feeder_niceness, build)
    stack.callback(replay.close)
    writer = replay.writer(0, plan.config.env.num_environments)
    steps = play(plan, writer, lambda: writer.inserted_items < plan.table.capacity_items)
    return Filled(replay, sampler, other, steps)


def play(plan: Plan, writer: ReplayWriter, going_on: Callable[[], bool]) -> int:
    """Plays at random, always the same, for as long as that holds; the real steps."""
    config = plan.config
    accumulator = plan.recipe.accumulator(config, writer)
    with contextlib.closing(make_environment(config.environment, config.env, seed=3)) as environment:
        random, size = np.random.default_rng(0), environment.num_environments
        values, steps = np.zeros(size, np.float32), 0
        state_values = state_size(plan.recipe.network(config, plan.spec))

        def states() -> np.ndarray:
            """As hard to compress as a network's."""
            return random.uniform(-1, 1, (size, state_values)).astype(np.float32)

        nothing = np.zeros(size, np.int32)
        accumulator.observe(ActorStep(nothing, values, environment.reset(), values, states()))
        while going_on():
            actions = random.integers(plan.spec.num_actions, size=size, dtype=np.int32)
            q_taken = random.normal(size=size).astype(np.float32)
            step = environment.step(actions)
            accumulator.observe(ActorStep(actions, q_taken, step, values, states()))
            steps += int(np.count_nonzero(~step.first))
            if not writer.ready(PATIENCE_S):
                raise GorilaError(f"replay took no more items for {PATIENCE_S:g} s")
    return steps


def saved_bytes(plan: Plan, filled: Filled, stack: contextlib.ExitStack) -> dict[str, float]:
    """What a played step takes in a saved replay, and in one of the same rows without any overlap."""
    steps = filled.steps
    alone = plan._replace(recipe=plan.recipe._replace(accumulator=lambda _, writer: SideBySide(writer)))
    table = TableSpec(step_signature(plan.spec), ROWS_ALONE, 2 * steps, 1, 0.0, 0.0, 0.0)
    replay = make_replay(plan.backend, table, 1, run_id=uuid.uuid4().hex)
    stack.callback(replay.close)
    writer = replay.writer(0, plan.config.env.num_environments)
    play(alone, writer, lambda: writer.inserted_items * ROWS_ALONE < steps)
    return {
        "saved_bytes_per_step": bytes_on_disk(filled.replay) / steps,
        "saved_bytes_per_step_of_frames_alone": bytes_on_disk(replay) / (writer.inserted_items * ROWS_ALONE),
    }


class SideBySide:
    """Makes items that share no row, of 16 rows each, so that the rows are most of what is saved; an
    accumulator."""

    def __init__(self, writer: ReplayWriter):
        self._writer = writer
        self._rows: collections.Counter[int] = collections.Counter()  # of each environment's episode

    def observe(self, seen: ActorStep) -> None:
        seen.append_to(self._writer)
        for e in np.flatnonzero(~seen.step.first):
            self._rows[e] += 1
            if self._rows[e] % ROWS_ALONE == 0:
                self._writer.insert(e, 1.0)
        for e in np.flatnonzero(seen.step.end):
            self._writer.end_episode(e)
            self._rows[e] = 0


def bytes_on_disk(replay: Replay) -> int:
    """Of a saved replay."""
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory) / "replay"
        replay.save(str(saved))
        return sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())
