"""Films a trained agent: python -m launchers.play --workdir=runs/pong --video=pong.mp4."""

from __future__ import annotations

import os

import jax
from absl import flags

from gorila_jax.evaluation.saved_run import load_run
from gorila_jax.evaluation.video import record
from gorila_jax.types import ConfigError
from launchers.program import run

WORKDIR = flags.DEFINE_string("workdir", None, "directory of the run to film")
CHECKPOINT = flags.DEFINE_integer(
    "checkpoint", None, "frame count of the checkpoint; by default the newest", 0
)
VIDEO = flags.DEFINE_string(
    "video", None, "file to write, .mp4 or .gif (which takes 100 kB of memory per step until it ends)"
)
OVERWRITE = flags.DEFINE_bool("overwrite", False, "replace that file if it exists")
EPISODES = flags.DEFINE_integer("episodes", 1, "whole games to play", 1)
EPSILON = flags.DEFINE_float(
    "epsilon", None, "chance of a random action; by default 0.05 on Atari, else 0", 0, 1
)
SEED = flags.DEFINE_integer("seed", 0, "of environment and random actions", 0)
FPS = flags.DEFINE_float("fps", 0.0, "steps shown per second; 0: the console's speed on Atari, else 10", 0)
MAX_STEPS = flags.DEFINE_integer("max_steps", 0, "end the film after so many steps; 0: with the last game", 0)


def main() -> int:
    if not WORKDIR.value:
        raise ConfigError("which run? --workdir=PATH")
    if not VIDEO.value:
        raise ConfigError("where to? --video=PATH.mp4 or PATH.gif")
    jax.config.update("jax_platforms", "cpu")  # a run that trains beside this one keeps its accelerators
    # Else imageio forks this process before it becomes ffmpeg, which JAX warns of as a likely deadlock.
    os.environ["IMAGEIO_FFMPEG_NO_PREVENT_SIGINT"] = "1"
    saved = load_run(WORKDIR.value, CHECKPOINT.value)
    recording = record(
        saved.config,
        saved.parameters,
        VIDEO.value,
        episodes=EPISODES.value,
        epsilon=EPSILON.value,
        seed=SEED.value,
        fps=FPS.value,
        max_steps=MAX_STEPS.value,
        overwrite=OVERWRITE.value,
        on_game=lambda game: print(f"score {game.score:g} after {game.steps:,} steps", flush=True),
    )
    if recording.cut_score is not None:
        print(f"score {recording.cut_score:g} when the film ended, before the game did")
    print(f"{recording.path}: {recording.pictures:,} pictures")
    return 0


if __name__ == "__main__":
    run(main)
