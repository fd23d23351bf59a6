"""How much of the machine does useful work when acting and learning share it?

    python -m benchmarks.end_to_end

Measured in turns: EnvPool and the policy, of which the actor's bound 1 / (1/environments + 1/policy) is
made; updates on one batch that lies on the device; and the threads of a whole run of `apex`. The whole
run's steps over the actor's bound and its samples over the learner's bound are the two parts of the machine
that did what they would do alone. Their sum is the share of the machine that did useful work: 1 would be
taking turns without any loss.
"""

from __future__ import annotations

import contextlib
import statistics

from benchmarks.arms import envpool_arm, envpool_figure, policy_arm, system_arm, update_arm
from benchmarks.interleaved import (
    ROUNDS,
    SECONDS,
    Ratio,
    measure_in_turns,
    median_ratios,
    report_rounds,
    summary,
)
from benchmarks.report import run
from benchmarks.road_flags import ENVIRONMENT, FEEDER_NICENESS, PRESET, REPLAY_BACKEND
from gorila_jax.environments.cores import usable_cores
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.devices import prefer_fast_cpu_runtime
from gorila_jax.runtime.plan import make_plan
from gorila_jax.types import ConfigError

CAPACITY_TRANSITIONS = 20_000  # soon full, so that the replay evicts while it is measured


def main() -> None:
    prefer_fast_cpu_runtime()
    config = make_config(
        "apex",
        ENVIRONMENT.value,
        PRESET.value or "small",
        {
            "actor.num_actors": 1,
            "env.num_threads": usable_cores(),
            "replay.backend": REPLAY_BACKEND.value,
            "replay.capacity_steps": CAPACITY_TRANSITIONS,
            "replay.learning_starts_steps": 1_000,
            "run.feeder_niceness": FEEDER_NICENESS.value,
        },
    )
    asked = config.replay.samples_per_insert
    if not asked:
        raise ConfigError("this preset leaves the ratio of samples to inserts free")
    plan = make_plan(config)
    threads = min(config.env.num_threads, config.env.num_environments)
    with contextlib.ExitStack() as stack:
        arms = [
            envpool_arm(config, threads, stack),
            policy_arm(plan),
            update_arm(plan),
            system_arm(plan, stack),
        ]
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    envpool, policy = envpool_figure(threads), "policy_frames_per_second"
    rounds["actor_bound_frames_per_second"] = [
        1 / (1 / environment + 1 / decision)
        for environment, decision in zip(rounds[envpool], rounds[policy], strict=True)
    ]
    wanted = {
        "acting_share": Ratio(
            "system_frames_per_second", "actor_bound_frames_per_second", "the actor's bound"
        ),
        "learning_share": Ratio("system_updates_per_second", "bare_updates_per_second", "bare updates"),
    }
    ratios = median_ratios(rounds, wanted)
    useful = [
        frames / bound + updates / bare
        for frames, bound, updates, bare in zip(
            *(
                rounds[ratio.figure if part == 0 else ratio.bound]
                for ratio in wanted.values()
                for part in (0, 1)
            ),
            strict=True,
        )
    ]
    ratios["useful_share"] = statistics.median(useful)
    measured = statistics.median(rounds["system_samples_per_insert"])
    ratios["samples_per_insert_error"] = abs(measured / asked - 1)
    settings = {
        "environment": config.environment,
        "preset": config.preset,
        "num_environments": config.env.num_environments,
        "threads": threads,
        "batch_size": config.learner.batch_size,
        "samples_per_insert": asked,
        "replay": plan.backend,
        "feeder_niceness": config.run.feeder_niceness,
    }
    title = (
        f"apex on {config.environment}, preset {config.preset}, replay {plan.backend}: "
        f"{ratios['useful_share']:.1%} of the machine does useful work"
    )
    more = {"useful_share": summary(useful)}
    report_rounds("end_to_end", title, rounds, ratios, wanted, settings, more)


if __name__ == "__main__":
    run(main)
