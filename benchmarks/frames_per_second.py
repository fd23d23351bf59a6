"""How fast is each part of the road, and how much of that is left when all of them run together?

    python -m benchmarks.frames_per_second --agent=gorila --environment=Pong-v5

Measured in one process, in turns, so that every part meets the same machine:

- *EnvPool*: the environments of one actor, random actions, at 1, n/2, n and 2n threads on n cores. The bound
  of every frame.
- *policy*: the jitted epsilon-greedy policy on frame stacks in host memory, nothing else.
- *actor*: environment, policy, accumulator and replay writer; the ratio of samples to inserts is left free.
- *bare updates*: gradient and push to the parameter server on a batch that lies on the device. The bound of
  every update.
- *system*: all threads of a run, through replay, while it learns.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.arms import actor_arm, envpool_arm, envpool_figure, policy_arm, system_arm, update_arm
from benchmarks.interleaved import (
    ROUNDS,
    SECONDS,
    Ratio,
    measure_in_turns,
    median_ratios,
    report_rounds,
)
from benchmarks.report import run
from benchmarks.road_flags import AGENT, ENVIRONMENT, NUM_ENVIRONMENTS, PRESET, REPLAY_BACKEND
from gorila_jax.config import Config, override
from gorila_jax.environments.cores import usable_cores
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.plan import Plan, make_plan

# Smaller than in a run, so that replay is soon full and evicts; frames still outgrow every cache.
CAPACITY_TRANSITIONS = 20_000
LEARNING_STARTS_TRANSITIONS = 1_000


def main() -> None:
    config = _config()
    plan = make_plan(config)
    cores = usable_cores()
    threads = min(config.env.num_threads or cores, config.env.num_environments)
    counts = {1, max(1, cores // 2), cores, 2 * cores, threads}
    thread_counts = sorted(count for count in counts if count <= config.env.num_environments)
    with contextlib.ExitStack() as stack:
        arms = [envpool_arm(config, count, stack) for count in thread_counts]
        arms.append(policy_arm(plan))
        arms.append(actor_arm(plan, stack))
        arms.append(update_arm(plan))
        arms.append(system_arm(plan, stack))
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    envpool = envpool_figure(threads)
    rounds["envpool_then_policy_frames_per_second"] = [
        1 / (1 / environment + 1 / policy)
        for environment, policy in zip(rounds[envpool], rounds["policy_frames_per_second"], strict=True)
    ]
    wanted = ratios_to_take(envpool, thread_counts)
    ratios = median_ratios(rounds, wanted)
    if config.replay.samples_per_insert:
        measured = statistics.median(rounds["system_samples_per_insert"])
        ratios["system_samples_per_insert_over_setting"] = measured / config.replay.samples_per_insert
    title = (
        f"{config.agent} on {config.environment}, preset {config.preset}: {config.env.num_environments} "
        f"environments in {threads} threads, replay {plan.backend}"
    )
    report_rounds("frames_per_second", title, rounds, ratios, wanted, settings(plan, threads))


def _config() -> Config:
    overrides: dict[str, Any] = {"replay.backend": REPLAY_BACKEND.value}
    if NUM_ENVIRONMENTS.value is not None:
        overrides["env.num_environments"] = NUM_ENVIRONMENTS.value
    config = make_config(AGENT.value or "gorila", ENVIRONMENT.value, PRESET.value or "", overrides)
    replay = config.replay
    return override(
        config,
        {
            "replay.capacity_steps": min(replay.capacity_steps, CAPACITY_TRANSITIONS),
            "replay.learning_starts_steps": min(replay.learning_starts_steps, LEARNING_STARTS_TRANSITIONS),
        },
    )


def ratios_to_take(envpool: str, thread_counts: Sequence[int]) -> dict[str, Ratio]:
    """`envpool`: its figure at the threads that an actor uses."""
    one, actor, system = envpool_figure(1), "actor_frames_per_second", "system_frames_per_second"
    serial = "envpool_then_policy_frames_per_second"
    return {
        **{
            f"envpool_{threads}_threads_over_1": Ratio(envpool_figure(threads), one, "1 thread")
            for threads in thread_counts
            if threads > 1
        },
        "policy_over_envpool": Ratio("policy_frames_per_second", envpool, "EnvPool"),
        "actor_over_envpool": Ratio(actor, envpool, "EnvPool"),
        "actor_over_envpool_then_policy": Ratio(actor, serial, "EnvPool, then policy"),
        "system_frames_over_envpool": Ratio(system, envpool, "EnvPool"),
        "system_frames_over_actor": Ratio(system, actor, "the actor alone"),
        "system_updates_over_bare": Ratio(
            "system_updates_per_second", "bare_updates_per_second", "bare updates"
        ),
    }


def settings(plan: Plan, num_threads: int) -> dict[str, Any]:
    """What has to be equal for two sets of figures to be comparable."""
    config = plan.config
    return {
        "agent": config.agent,
        "environment": dict(plan.spec.settings) | {"name": config.environment},
        "preset": config.preset,
        "replay_backend": plan.backend,
        "num_actors": config.actor.num_actors,
        "num_environments": config.env.num_environments,
        "num_threads": num_threads,
        "frames_per_step": plan.spec.frames_per_step,
        "num_learners": config.learner.num_learners,
        "num_shards": config.parameter_server.num_shards,
        "batch_size": config.learner.batch_size,
        "n_steps": config.learner.n_steps,
        "samples_per_insert": config.replay.samples_per_insert,
        "capacity_steps": config.replay.capacity_steps,
    }


if __name__ == "__main__":
    run(main)
