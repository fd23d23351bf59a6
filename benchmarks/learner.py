"""What do a learner's updates lose to sampling, decompression and copies?

    python -m benchmarks.learner
    python -m benchmarks.learner --agent=r2d2

Measured in turns, for the Nature network at batch 128 and the small one at batch 32: updates of a learner
that is fed from a full Reverb server, priorities going back to it, against updates on one batch that lies
on the device. And the Nature network's update with its convolutions as they are written in the paper,
against ours, which lay blocks of pixels into the channels first. XLA's older CPU runtime, the faster one,
cannot compute the gradients of plain strided convolutions (`prefer_fast_cpu_runtime`), and so those run in
a process of their own with the newer one; ours run in both.

Of the recurrent agents it is the small network at batch 8, in sequences and in trained steps too, and what a
step of their replay takes when it is saved, beside the frames alone.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import haiku as hk
import jax
import numpy as np
from absl import flags

from benchmarks.arms import ENDLESS, TICK_S, update_arm
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
from gorila_jax.actor.accumulator import ActorStep
from gorila_jax.config import Config
from gorila_jax.environments import make_environment
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import Prefetcher, StandIn
from gorila_jax.learner.priorities import PriorityWriter
from gorila_jax.networks.memoryless import memoryless
from gorila_jax.parameter_server import make_parameter_server
from gorila_jax.replay import TableSpec, make_replay, step_signature
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.coordinator import Coordinator
from gorila_jax.runtime.devices import THUNKS, prefer_fast_cpu_runtime
from gorila_jax.runtime.plan import Plan, make_plan, state_size
from gorila_jax.runtime.threads import IDLE, Worker, call_yielding, run_threads
from gorila_jax.types import (
    EnvironmentSpec,
    GorilaError,
    Network,
    Replay,
    ReplayWriter,
    Sampler,
)

CONVOLUTIONS = flags.DEFINE_list(
    "convolutions",
    [],
    "preset and batch size; measures two kinds of convolutions, as standard input asks: for a parent process",
)
STEPS = flags.DEFINE_integer("steps", 4_000, "in replay, from random play", 256)

CASES = {"nature_128": ("paper", 128), "small_32": ("small", 32)}
"""Name to preset, whose network it is, and batch size."""

SEQUENCE_AGENTS = ("drqn", "r2d2")
SEQUENCE_CASES = {"small_8": ("small", 8)}
"""The same of agents that learn from sequences; the batch is r2d2's."""

SPACE_TO_DEPTH = "nature_128_newer_runtime"
PLAIN = "nature_128_newer_runtime_plain"
PATIENCE_S = 60.0
ROWS_ALONE = 16  # of an item, where rows are saved without overlap


def main() -> None:
    if CONVOLUTIONS.value:
        answer_about_convolutions(config_of(CONVOLUTIONS.value[0], int(CONVOLUTIONS.value[1])))
        return
    recurrent = agent() in SEQUENCE_AGENTS
    cases = SEQUENCE_CASES if recurrent else CASES
    more: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        arms = [] if recurrent else newer_runtime_arms(stack, *cases["nature_128"])
        prefer_fast_cpu_runtime()
        for name, (preset, batch_size) in cases.items():
            plan = make_plan(config_of(preset, batch_size))
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


def newer_runtime_arms(stack: contextlib.ExitStack, preset: str, batch_size: int) -> list[Arm]:
    """Arms in a child process that answers as `answer_about_convolutions` does."""
    command = [sys.executable, "-m", "benchmarks.learner", f"--convolutions={preset},{batch_size}"]
    environment = dict(os.environ)
    if environment.get("XLA_FLAGS"):  # without a choice of the older runtime that this process has made
        environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace(f"{THUNKS}=false", "")
    child = stack.enter_context(  # unbuffered: what a dead child did not take is not sent again at the end
        subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    )
    assert child.stdin is not None
    assert child.stdout is not None
    questions, answers = child.stdin, child.stdout

    def arm(name: str) -> Arm:
        def measure(seconds: float) -> dict[str, float]:
            with contextlib.suppress(BrokenPipeError):  # it has ended: then it gives no answer either
                questions.write(f"{name} {seconds}\n".encode())
            answer = answers.readline()
            if not answer:
                raise GorilaError(f"the process that measures convolutions ended with code {child.wait()}")
            figures: dict[str, float] = json.loads(answer)
            return figures

        return measure

    return [arm(SPACE_TO_DEPTH), arm(PLAIN)]


def answer_about_convolutions(config: Config) -> None:
    """For every line "arm seconds" on standard input, what that arm measures as JSON on standard output."""
    jax.local_devices()  # starts jax with the newer runtime, before a plan could choose the older one
    plan = make_plan(config)
    plain = plan._replace(recipe=plan.recipe._replace(network=plain_nature_network))
    arms = {
        name: renamed(update_arm(its_plan), name, plan)
        for name, its_plan in ((SPACE_TO_DEPTH, plan), (PLAIN, plain))
    }
    for question in sys.stdin:
        name, seconds = question.split()
        print(json.dumps(arms[name](float(seconds))), flush=True)


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


class Filled(NamedTuple):
    """A replay full of random play, and its ends for a learner."""

    replay: Replay
    sampler: Sampler
    other: Sampler  # of the stand-in
    steps: int  # that were played


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


def plain_nature_network(config: Config, spec: EnvironmentSpec) -> Network:
    """Apex's network with the convolutions as Haiku writes them."""

    def head(features: jax.Array, outputs: int) -> jax.Array:
        for units in config.network.hidden_units:
            features = jax.nn.relu(hk.Linear(units)(features))
        return hk.Linear(outputs)(features)

    def forward(stacks: jax.Array) -> jax.Array:
        hidden = jax.numpy.moveaxis(stacks, 1, -1).astype(jax.numpy.float32) / 255.0
        if config.network.centered_images:
            hidden -= hidden[:, ::4, ::4].mean(axis=(1, 2), keepdims=True)
        for filters, kernel, stride in zip(config.network.filters, (8, 4, 3), (4, 2, 1), strict=False):
            hidden = jax.nn.relu(hk.Conv2D(filters, kernel, stride, padding="VALID")(hidden))
        features = hidden.reshape(hidden.shape[0], -1)
        value, advantage = head(features, 1), head(features, spec.num_actions)
        return value + advantage - advantage.mean(axis=-1, keepdims=True)

    transformed = hk.without_apply_rng(hk.transform(forward))
    stacks = np.zeros((1, config.env.frame_stack, *spec.observation_shape), spec.observation_dtype)
    return memoryless(lambda key: transformed.init(key, stacks), transformed.apply)


if __name__ == "__main__":
    run(main)
