"""What do a learner's updates lose to sampling, decompression and copies?

    python -m benchmarks.learner
    python -m benchmarks.learner --agent=r2d2

Measured in turns, for the Nature network at batch 128 and the small one at batch 32: updates of a learner
that is fed from a full Reverb server, priorities going back to it, against updates on one batch that lies
on the device. And the Nature network's update with its convolutions as they are written in the paper,
against ours, which lay blocks of pixels into the channels first. XLA's older CPU runtime, the faster one,
cannot compute the gradients of plain strided convolutions (`prefer_fast_cpu_runtime`), and so those run in
a process of their own with the newer one; ours run in both.

Of the recurrent agents it is the small network at batch 4, in sequences and in trained steps too, and what a
step of their replay takes when it is saved, beside the frames alone.
"""

from __future__ import annotations

import contextlib

import jax
from absl import flags

from benchmarks.arms import ENDLESS, TICK_S, update_arm
from benchmarks.convolutions import newer_runtime_arms
from benchmarks.filled_replay import PATIENCE_S, Filled, fill_replay, saved_bytes
from benchmarks.interleaved import (
    ROUNDS,
    SECONDS,
    Arm,
    Ratio,
    measure_in_turns,
    median_ratios,
    per_second,
    report_rounds,
)
from benchmarks.report import run
from benchmarks.road_flags import AGENT, FEEDER_NICENESS, REPLAY_BACKEND
from gorila_jax.config import Config
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher, StandIn
from gorila_jax.learner.priorities import PriorityWriter
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.devices import prefer_fast_cpu_runtime
from gorila_jax.runtime.plan import Plan, make_plan
from gorila_jax.runtime.threads import IDLE, Worker, run_threads
from gorila_jax.types import GorilaError

STEPS = flags.DEFINE_integer("steps", 4_000, "in replay, from random play", 256)

CASES = {"nature_128": ("paper", 128), "small_32": ("small", 32)}
"""Name to preset, whose network it is, and batch size."""

SPACE_TO_DEPTH = "nature_128_newer_runtime"
PLAIN = "nature_128_newer_runtime_plain"

SEQUENCE_AGENTS = ("drqn", "r2d2")
SEQUENCE_CASES = {"small_4": ("small", 4)}
"""The same of agents that learn from sequences; the batch is r2d2's."""


def main() -> None:
    recurrent = agent() in SEQUENCE_AGENTS
    cases = SEQUENCE_CASES if recurrent else CASES
    more: dict[str, float] = {}
    prefer_fast_cpu_runtime()
    plans = {name: make_plan(config_of(*case)) for name, case in cases.items()}
    with contextlib.ExitStack() as stack:
        arms: list[Arm] = []
        if not recurrent:
            plan = plans["nature_128"]
            space_to_depth, plain = newer_runtime_arms(plan.config, stack)
            arms = [renamed(space_to_depth, SPACE_TO_DEPTH, plan), renamed(plain, PLAIN, plan)]
        for name, plan in plans.items():
            arms.append(renamed(update_arm(plan), f"{name}_resident", plan))
            filled = fill_replay(plan, stack)
            arms.append(renamed(live_arm(plan, filled), f"{name}_live", plan))
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
        if recurrent:
            more = saved_bytes(plan, filled, stack)
    live = {
        f"{name}_live_of_resident": Ratio(
            updates_figure(f"{name}_live"), updates_figure(f"{name}_resident"), "resident"
        )
        for name in cases
    }
    ratios = median_ratios(rounds, live)
    ratios["live_of_resident"] = min(ratios.values())
    convolutions = {}
    if recurrent:
        ratios["saved_bytes_of_frames"] = (
            more["saved_bytes_per_step"] / more["saved_bytes_per_step_of_frames_alone"]
        )
    else:
        convolutions = {
            "space_to_depth_speedup": Ratio(
                updates_figure("nature_128_resident"),
                updates_figure(PLAIN),
                "plain ones in the newer runtime",
            ),
            "space_to_depth_speedup_in_newer_runtime": Ratio(
                updates_figure(SPACE_TO_DEPTH), updates_figure(PLAIN), "plain ones there"
            ),
        }
        ratios |= median_ratios(rounds, convolutions)
    settings = {
        "agent": agent(),
        "steps": STEPS.value,
        "replay": plan.backend,
        "feeder_niceness": FEEDER_NICENESS.value,
    }
    report_rounds("learner", f"{agent()}'s learner", rounds, ratios, live | convolutions, settings, more)


def agent() -> str:
    return AGENT.value or "apex"


def updates_figure(arm: str) -> str:
    return f"{arm}_updates_per_second"


def config_of(preset: str, batch_size: int) -> Config:
    return make_config(
        agent(),
        "Pong-v5",
        preset,
        {
            "actor.num_actors": 1,
            "env.num_environments": 16,
            "learner.batch_size": batch_size,
            "replay.backend": REPLAY_BACKEND.value,
            "replay.capacity_steps": STEPS.value,
            "replay.learning_starts_steps": STEPS.value // 2,
            "replay.samples_per_insert": 0.0,
            "run.feeder_niceness": FEEDER_NICENESS.value,
        },
    )


def renamed(arm: Arm, name: str, plan: Plan) -> Arm:
    """The one figure of an arm, updates per second, under another name; of sequences what it comes to."""
    length = plan.recipe.layout(plan.config).length_steps

    def measure(seconds: float) -> dict[str, float]:
        (updates,) = arm(seconds).values()
        figures = {updates_figure(name): updates}
        if length > 1:
            sequences = updates * plan.config.learner.batch_size
            figures[f"{name}_sequences_per_second"] = sequences
            figures[f"{name}_steps_per_second"] = sequences * length
        return figures

    return measure


def live_arm(plan: Plan, filled: Filled) -> Arm:
    """Updates of a learner on a full replay; prefetching and priorities have threads, as in a run."""
    config, niceness = plan.config, plan.config.run.feeder_niceness
    sampler = filled.sampler
    devices = plan.topology.learner_devices[0]
    network = plan.recipe.network(config, plan.spec)
    server = make_parameter_server(network.init(jax.random.PRNGKey(0)), config.parameter_server, [devices])
    prefetcher = Prefetcher(config.learner, devices, sampler.sample)
    priority_writer = PriorityWriter(sampler.update_priorities)
    feeders: dict[str, Worker] = {
        "prefetcher": prefetcher,
        "stand_in": StandIn(prefetcher, filled.other.sample),
        "priority_writer": priority_writer,
    }
    levels = dict.fromkeys(feeders, niceness) | {"prefetcher": IDLE if niceness else 0}
    learner = Learner(
        config.learner,
        plan.recipe.loss(config, network),
        devices,
        prefetcher.next_batch,
        pull=lambda: server.pull(0),
        push=lambda gradient: server.push(0, gradient),
        send_priorities=priority_writer.send,
    )

    def update(stop: Coordinator) -> int:
        if not learner.step(PATIENCE_S):
            if stop.failure is not None:
                raise stop.failure
            raise GorilaError(f"replay gave no batch in {PATIENCE_S:g} s")
        return 1

    def measure(seconds: float) -> dict[str, float]:
        stop = Coordinator(ENDLESS)
        figures = {}

        def tick() -> None:
            update(stop)  # the first one waits for the first batch
            figures["live"] = per_second(lambda: update(stop), seconds, settle=server.status)
            stop.stop("budget")

        run_threads(feeders, stop, tick, TICK_S, levels)
        if stop.failure is not None:
            raise stop.failure
        return figures

    return measure


if __name__ == "__main__":
    run(main)
