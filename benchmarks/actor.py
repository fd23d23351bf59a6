"""How much of what the machine can do does an actor use?

    python -m benchmarks.actor

Measured in turns: EnvPool beneath our wrapper with random actions, the policy on stacks in host memory, and
the whole actor (environments, policy, n-step transitions, first priorities, Reverb). An actor whose own
work cost nothing, and which never did two things at once, would take 1 / (1/environments + 1/policy): the
bound. And the same environments shared out to several actors, of which one chooses actions while the
environments of another run: does that gain anything, or do they get in each other's way?
"""

from __future__ import annotations

import contextlib
import statistics

from absl import flags

from benchmarks.arms import actor_arm, actors_arm, actors_figure, envpool_arm, envpool_figure, policy_arm
from benchmarks.interleaved import (
    ROUNDS,
    SECONDS,
    Ratio,
    measure_in_turns,
    median_ratios,
    report_rounds,
)
from benchmarks.number_lists import whole_numbers
from benchmarks.report import run
from benchmarks.road_flags import ENVIRONMENT, NUM_ENVIRONMENTS, PRESET, REPLAY_BACKEND
from gorila_jax.config import override
from gorila_jax.environments.cores import usable_cores
from gorila_jax.runtime.configure import make_config
from gorila_jax.runtime.devices import prefer_fast_cpu_runtime
from gorila_jax.runtime.plan import make_plan
from gorila_jax.types import ConfigError

ACTORS = flags.DEFINE_list("actors", ["2", "4"], "numbers of actors that share the environments out")

CAPACITY_TRANSITIONS = 20_000  # soon full, so that the replay evicts while it is measured


def main() -> None:
    prefer_fast_cpu_runtime()
    size = NUM_ENVIRONMENTS.value or 64
    threads = min(usable_cores(), size)
    config = make_config(
        "apex",
        ENVIRONMENT.value,
        PRESET.value or "paper",  # the Nature network
        {
            "env.num_environments": size,
            "env.num_threads": threads,
            "actor.num_actors": 1,
            "replay.backend": REPLAY_BACKEND.value,
            "replay.capacity_steps": CAPACITY_TRANSITIONS,
            "replay.learning_starts_steps": 1_000,
        },
    )
    plan = make_plan(config)
    counts = whole_numbers(ACTORS)
    for count in counts:
        if size % count:
            raise ConfigError(f"{size} environments cannot be shared equally by --actors={count}")
    shared = [
        override(
            config,
            {
                "actor.num_actors": count,
                "env.num_environments": size // count,
                "env.num_threads": max(1, threads // count),
            },
        )
        for count in counts
    ]
    with contextlib.ExitStack() as stack:
        arms = [envpool_arm(config, threads, stack), policy_arm(plan), actor_arm(plan, stack)]
        arms += [actors_arm(make_plan(each), stack) for each in shared]
        rounds = measure_in_turns(arms, ROUNDS.value, SECONDS.value)
    envpool, policy, actor = envpool_figure(threads), "policy_frames_per_second", "actor_frames_per_second"
    rounds["bound_frames_per_second"] = [
        1 / (1 / environment + 1 / decision)
        for environment, decision in zip(rounds[envpool], rounds[policy], strict=True)
    ]
    wanted = {
        "actor_of_bound": Ratio(actor, "bound_frames_per_second", "the bound"),
        **{f"actors_{count}_of_one": Ratio(actors_figure(count), actor, "one actor") for count in counts},
    }
    ratios = median_ratios(rounds, wanted)
    steps = {"actor_steps_per_second": statistics.median(rounds[actor]) / plan.spec.frames_per_step}
    settings = {
        "environment": config.environment,
        "num_environments": config.env.num_environments,
        "threads": threads,
        "preset": config.preset,
        "replay": plan.backend,
    }
    title = (
        f"an actor of apex on {config.environment}: {config.env.num_environments} environments in {threads} "
        f"threads, replay {plan.backend}"
    )
    report_rounds("actor", title, rounds, ratios, wanted, settings, steps)


if __name__ == "__main__":
    run(main)
