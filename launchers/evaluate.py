"""Scores a trained agent: python -m launchers.evaluate --workdir=runs/pong --episodes=100.

Plays whole games with the parameters of one checkpoint, beside a run that still trains if need be. Needs
nothing but the workdir. The last line is JSON: mean, standard deviation, every return, every setting.
"""

from __future__ import annotations

import json
import sys
import time

import jax
from absl import flags

from gorila_jax.actor.scores import Game
from gorila_jax.config import fields, override, validate
from gorila_jax.evaluation.evaluator import evaluate, result_record
from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.runtime.workdir import versions
from gorila_jax.types import ConfigError
from launchers.program import run

WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run to evaluate")
CHECKPOINT = flags.DEFINE_integer(
    "checkpoint", None, "frame count of the checkpoint; by default the newest", 0
)
EPISODES = flags.DEFINE_integer("episodes", 100, "whole games to play", 1)
EPSILON = flags.DEFINE_float(
    "epsilon", None, "chance of a random action; by default 0.05 on Atari, else 0", 0, 1
)
SEED = flags.DEFINE_integer("seed", 0, "of environments and random actions", 0)
NUM_ENVIRONMENTS = flags.DEFINE_integer("num_environments", None, "games played at once; by default 16", 1)
MAX_MINUTES = flags.DEFINE_float("max_minutes", 120.0, "give up, without a result, after so many minutes", 0)

# Not the frame stack, which the network was made for, nor what only training knows.
_FIXED = ("env.num_environments", "env.frame_stack", "env.discount", "env.life_loss_is_end")
_PROTOCOL = [path for path in fields() if path.startswith("env.") and path not in _FIXED]
for _path in _PROTOCOL:
    flags.DEFINE_string(f"config.{_path}", None, f"{fields()[_path].meaning}; by default that of training")


def main() -> int:
    if not WORKDIR.value:
        raise ConfigError("which run? --workdir=PATH")
    jax.config.update("jax_platforms", "cpu")  # a run that trains beside this one keeps its accelerators
    saved = load_run(WORKDIR.value, CHECKPOINT.value)
    values = flags.FLAGS.flag_values_dict()
    changed = {path: values[f"config.{path}"] for path in _PROTOCOL if values[f"config.{path}"] is not None}
    saved = saved._replace(config=override(saved.config, changed))
    validate(saved.config)
    played = 0

    def report(game: Game) -> None:
        nonlocal played
        played += 1
        print(
            f"game {played} of {EPISODES.value}: score {game.score:g} after {game.steps:,} steps",
            file=sys.stderr,
            flush=True,
        )

    evaluation = evaluate(
        saved.config,
        saved.parameters,
        episodes=EPISODES.value,
        epsilon=EPSILON.value,
        seed=SEED.value,
        num_environments=NUM_ENVIRONMENTS.value,
        on_game=report,
        clock=time.monotonic,
        max_minutes=MAX_MINUTES.value,
    )
    print(
        f"{saved.config.agent} on {evaluation.spec.name} after {saved.frames:,} frames: mean "
        f"{evaluation.mean:g}, standard deviation {evaluation.standard_deviation:g}, "
        f"{len(evaluation.games)} games, epsilon {evaluation.epsilon:g}"
    )
    print(json.dumps(result_record(saved, evaluation, versions())), flush=True)
    return 0


if __name__ == "__main__":
    run(main)
