"""All workers in one thread in a fixed order: same seed, same bits."""

from __future__ import annotations

from collections.abc import Callable

from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.system import System
from gorila_jax.types import GorilaError


def run_lockstep(system: System, coordinator: Coordinator, tick: Callable[[], None]) -> None:
    """Rounds until the stop signal: every actor one step, then the learners until the ratio is met.

    New priorities are in replay before the learners draw their next batches.

    With a free ratio a round is one step of every actor and one update of every learner. `tick` is called
    after every round. Raises GorilaError when nobody can move.
    """
    held = system.config.replay.samples_per_insert > 0
    while not coordinator.stopped():
        moved = False
        for actor in system.actors:
            if not coordinator.stopped():
                moved |= actor.step(0.0)
        learning = True
        while learning and not coordinator.stopped():
            updates = [learner.step(0.0) for learner in system.learners]
            for priority_writer in system.priority_writers:
                priority_writer.step(0.0)  # waits for the update
            learning = held and any(updates)
            moved |= any(updates)
        if not moved and not coordinator.stopped():
            raise GorilaError(f"nobody can move: {system.describe_waits()}")
        tick()
