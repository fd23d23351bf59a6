"""What does it cost that the parameter server stands apart from the learner, and that it has shards?

    python -m benchmarks.parameter_server

One learner, on its own devices:

- *server*: `Learner.step` as in a run, on a batch that lies on the device: pull, gradient and push. Gradient
  and push are two calls, each with its checks.
- *fused*: one pmap-ed call that does gradient and optax update and checks nothing. The bound.
- *gradient*: the learner's call alone, pushed nowhere: what is lost beyond it is lost in the push.

Many learners, over S shards:

- *pushes*: a ready-made gradient into S shards, from one thread.
- *optax*: the same optimizer on the whole flat vector, in one call; *memcpy*: one copy of that vector. The
  bounds.
- *learners*: so many threads with a learner each, pulling, computing and pushing, and how old their gradients
  were.

What the server costs is a few hundredths of an update, and the machine's speed wanders by more than that
within seconds: the turns are short, and there are many.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import flax.jax_utils
import jax
import numpy as np
import optax
from absl import flags
from jax.flatten_util import ravel_pytree

from benchmarks.interleaved import (
    ROUNDS,
    SECONDS,
    Arm,
    Ratio,
    measure_in_turns,
    measure_speed,
    median_ratios,
    per_second,
    report_rounds,
)
from benchmarks.number_lists import whole_numbers
from benchmarks.report import run
from benchmarks.resident_batch import resident_batch, resident_learner
from gorila_jax.config import Config, override
from gorila_jax.learner.gradients import make_gradient_fn
from gorila_jax.learner.learner import Learner
from gorila_jax.learner.prefetch import DeviceBatch
from gorila_jax.parameter_server import ShardedParameterServer, make_optimizer, make_parameter_server
from gorila_jax.parameter_server.device import donation_pays
from gorila_jax.rl import guards
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import Plan, make_plan
from gorila_jax.types import ConfigError, Gradient, Parameters, ParameterServer, Step

CASES = flags.DEFINE_list(
    "cases", ["small_32", "nature_32", "nature_128"], "networks and batch sizes of one learner: NETWORK_SIZE"
)
SHARDED_CASE = flags.DEFINE_string("sharded_case", "nature_32", "network and batch size of many learners")
SHARDS = flags.DEFINE_list("shards", ["1", "2", "4"], "numbers of shards")
LEARNERS = flags.DEFINE_list("learners", ["2", "4"], "numbers of learners, a thread each")

NETWORKS = {
    "toy": ("Catch-v0", "toy"),
    "small": ("Pong-v5", "small"),
    "nature": ("Pong-v5", "paper"),
}
"""Environment and preset of dqn that a network is of."""

flags.set_default(ROUNDS, 40)
flags.set_default(SECONDS, 0.4)

OF_FUSED = "server_of_fused"
OPTAX = "optax_updates_per_second"
MEMCPY = "memcpy_copies_per_second"


class Case(NamedTuple):
    """One network with one batch of random numbers on one learner's devices."""

    name: str
    config: Config
    plan: Plan
    devices: Sequence[jax.Device]
    loss_fn: Callable
    parameters: Parameters
    batch: DeviceBatch


def main() -> None:
    cases = [make_case(name) for name in CASES.value]
    sharded = make_case(SHARDED_CASE.value)
    shards, learners = whole_numbers(SHARDS), whole_numbers(LEARNERS)
    arms = [arm for case in cases for arm in (server_arm(case), fused_arm(case), gradient_arm(case))]
    arms += [optax_arm(sharded), memcpy_arm(sharded), *(pushes_arm(sharded, count) for count in shards)]
    arms += [learners_arm(sharded, threads, count) for threads in learners for count in shards]
    rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    wanted = ratios_to_take([case.name for case in cases], sharded.name, shards, learners)
    ratios = median_ratios(rounds, wanted)
    worst = min(ratios[f"{OF_FUSED}_{case.name}"] for case in cases)
    title = (
        f"Parameter server on {sharded.devices[0].device_kind}; one learner: {', '.join(CASES.value)}; many: "
        f"{sharded.name}"
    )
    report_rounds(
        "parameter_server", title, rounds, {OF_FUSED: worst, **ratios}, wanted, settings(cases, sharded)
    )


def make_case(name: str) -> Case:
    network_name, _, batch_size = name.rpartition("_")
    if network_name not in NETWORKS or not batch_size.isdigit():
        raise ConfigError(f"case {name!r}: one of {', '.join(NETWORKS)}, and a batch size, as in small_32")
    environment, preset = NETWORKS[network_name]
    config = make_config("dqn", environment, preset, {"learner.batch_size": int(batch_size)})
    plan = make_plan(config)
    devices = plan.topology.learner_devices[0]
    network = plan.recipe.network(config, plan.spec)
    return Case(
        name,
        config,
        plan,
        devices,
        plan.recipe.loss(config, network),
        network.init(jax.random.PRNGKey(0)),
        resident_batch(plan, devices),
    )


def make_learner(case: Case, server: ParameterServer, index: int = 0) -> Learner:
    return resident_learner(case.config, case.loss_fn, case.devices, case.batch, server, index)


def server_arm(case: Case) -> Arm:
    server = make_parameter_server(case.parameters, case.config.parameter_server, [case.devices])
    learner = make_learner(case, server)
    return lambda seconds: update_figures(
        "server", case, lambda: int(learner.step(0.0)), seconds, server.status
    )


def fused_arm(case: Case) -> Arm:
    """The least that an update can be: one call, no checks, nothing counted."""
    optimizer = make_optimizer(case.config.parameter_server)

    def fused(
        parameters: Parameters,
        state: Any,
        target: Parameters,
        steps: Step,
        remembered: jax.Array,
        weights: jax.Array,
    ) -> Any:
        def mean_loss(parameters: Parameters) -> jax.Array:
            return (weights * case.loss_fn(parameters, target, steps, remembered).losses).mean()

        loss, gradients = jax.lax.pmean(jax.value_and_grad(mean_loss)(parameters), "devices")
        updates, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    # Donated as the server does it: on a CPU a call with donated buffers waits for its result.
    donated = (0, 1) if donation_pays(case.devices) else ()
    step = jax.pmap(fused, axis_name="devices", devices=case.devices, donate_argnums=donated)
    copy = jax.pmap(lambda tree: jax.tree.map(lambda x: x.copy(), tree), devices=case.devices)
    target = flax.jax_utils.replicate(case.parameters, case.devices)
    parameters = copy(target)
    state = jax.pmap(optimizer.init, devices=case.devices)(parameters)
    loss = None

    def update() -> int:
        nonlocal parameters, state, loss
        previous, batch = loss, case.batch
        parameters, state, loss = step(parameters, state, target, batch.steps, batch.state, batch.weights)
        jax.block_until_ready(previous)
        return 1

    return lambda seconds: update_figures(
        "fused", case, update, seconds, lambda: jax.block_until_ready(parameters)
    )


def gradient_arm(case: Case) -> Arm:
    gradient_fn = make_gradient_fn(case.loss_fn, case.config.learner, case.devices)
    guard = flax.jax_utils.replicate(guards.initial_guard_state(), case.devices)
    parameters = flax.jax_utils.replicate(case.parameters, case.devices)

    def compute() -> int:
        nonlocal guard
        batch = case.batch
        output = gradient_fn(parameters, parameters, guard, batch.steps, batch.state, batch.weights)
        jax.block_until_ready(guard)  # which the call before this one gave
        guard = output.guard
        return 1

    return lambda seconds: update_figures(
        "gradient", case, compute, seconds, lambda: jax.block_until_ready(guard)
    )


def update_figures(
    arm: str, case: Case, update: Callable[[], int], seconds: float, settle: Callable[[], object]
) -> dict[str, float]:
    speed = measure_speed(update, seconds, settle)
    return {
        updates_figure(arm, case.name): speed.per_second,
        processor_figure(arm, case.name): 1000 * speed.processor_s,
    }


def sharded_server(case: Case, shards: int, learners: int) -> ShardedParameterServer:
    config = override(case.config, {"parameter_server.num_shards": shards}).parameter_server
    return ShardedParameterServer(case.parameters, config, [case.devices] * learners)


def pushes_arm(case: Case, shards: int) -> Arm:
    """A gradient that is small enough to leave the parameters finite, pushed again and again."""
    server = sharded_server(case, shards, 1)
    small = jax.tree.map(lambda x: np.full(x.shape, 1e-6, np.float32), case.parameters)
    gradients, finite, outlier = flax.jax_utils.replicate((small, True, False), case.devices)
    gradient = Gradient((0,) * shards, gradients, finite, outlier)

    def push() -> int:
        server.push(0, gradient)
        return 1

    def settle() -> None:
        jax.block_until_ready(server.pull_policy())

    return lambda seconds: {pushes_figure(shards): per_second(push, seconds, settle)}


def optax_arm(case: Case) -> Arm:
    """The server's optimizer by itself."""
    optimizer = make_optimizer(case.config.parameter_server, sharded=True)
    parameters = jax.device_put(ravel_pytree(case.parameters)[0], case.devices[0])
    gradient = jax.device_put(np.full(parameters.shape, 1e-6, np.float32), case.devices[0])
    state = optimizer.init(parameters)

    @jax.jit
    def apply(parameters: jax.Array, state: Any, gradient: jax.Array) -> Any:
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    def update() -> int:
        nonlocal parameters, state
        previous = parameters
        parameters, state = apply(parameters, state, gradient)
        jax.block_until_ready(previous)
        return 1

    return lambda seconds: {
        OPTAX: per_second(update, seconds, settle=lambda: jax.block_until_ready(parameters))
    }


def memcpy_arm(case: Case) -> Arm:
    source = np.ones(ravel_pytree(case.parameters)[0].shape, np.float32)
    target = np.zeros_like(source)

    def copy() -> int:
        np.copyto(target, source)
        return 1

    return lambda seconds: {MEMCPY: per_second(copy, seconds)}


def learners_arm(case: Case, num_learners: int, shards: int) -> Arm:
    """A thread per learner, as in a run. Ages are in updates of the shard that had applied most."""
    server = sharded_server(case, shards, num_learners)
    learners = [make_learner(case, server, index) for index in range(num_learners)]

    def measure(seconds: float) -> dict[str, float]:
        def rate(learner: Learner) -> float:
            return per_second(lambda: int(learner.step(0.0)), seconds)

        before = np.array(server.status().staleness_histogram)
        with ThreadPoolExecutor(num_learners) as pool:
            rates = list(pool.map(rate, learners))
        counts = server.status().staleness_histogram - before  # [bins], the last one for all older
        name = learners_figure(num_learners, shards)
        return {
            f"{name}_updates_per_second": sum(rates),
            f"{name}_mean_age_updates": float(np.average(np.arange(counts.size), weights=counts)),
            f"{name}_greatest_age_updates": float(np.flatnonzero(counts)[-1]),
        }

    return measure


def updates_figure(arm: str, case: str) -> str:
    return f"{arm}_{case}_updates_per_second"


def processor_figure(arm: str, case: str) -> str:
    return f"{arm}_{case}_processor_ms_per_update"


def pushes_figure(shards: int) -> str:
    return f"pushes_{shards}_shards_per_second"


def learners_figure(num_learners: int, shards: int) -> str:
    return f"learners_{num_learners}_shards_{shards}"


def ratios_to_take(
    cases: Sequence[str], sharded: str, shards: Sequence[int], learners: Sequence[int]
) -> dict[str, Ratio]:
    """`server_of_fused` is the worst of its cases. In processor time: what it would be if both kept
    as many cores busy, for machines where others compute too."""
    ratios = {}
    for case in cases:
        fused = updates_figure("fused", case)
        ratios[f"{OF_FUSED}_{case}"] = Ratio(updates_figure("server", case), fused, "fused")
        ratios[f"fused_of_server_processor_time_{case}"] = Ratio(
            processor_figure("fused", case), processor_figure("server", case), "server"
        )
        ratios[f"gradient_of_fused_{case}"] = Ratio(updates_figure("gradient", case), fused, "fused")
    for count in shards:
        ratios[f"pushes_{count}_shards_of_optax"] = Ratio(pushes_figure(count), OPTAX, "optax")
        ratios[f"pushes_{count}_shards_of_memcpy"] = Ratio(pushes_figure(count), MEMCPY, "memcpy")
    if sharded in cases:
        for threads, count in itertools.product(learners, shards):
            name = learners_figure(threads, count)
            ratios[f"{name}_of_one_learner"] = Ratio(
                f"{name}_updates_per_second", updates_figure("server", sharded), "one learner"
            )
    return ratios


def settings(cases: Sequence[Case], sharded: Case) -> dict[str, Any]:
    """What has to be equal for two sets of figures to be comparable."""
    return {
        "cases": {case.name: settings_of(case) for case in cases},
        "sharded": {"case": sharded.name, **settings_of(sharded)},
    }


def settings_of(case: Case) -> dict[str, Any]:
    server = case.config.parameter_server
    return {
        "environment": case.config.environment,
        "filters": list(case.config.network.filters),
        "hidden_units": list(case.config.network.hidden_units),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(case.parameters)),
        "batch_size": case.config.learner.batch_size,
        "devices": len(case.devices),
        "optimizer": server.optimizer,
        "target_period_updates": server.target_period_updates,
    }


if __name__ == "__main__":
    run(main)
