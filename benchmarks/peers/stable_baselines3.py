"""Stable-Baselines3's DQN on one Atari game, run by the Python that has `stable_baselines3.txt`."""

from __future__ import annotations

from typing import Any

import ale_py  # type: ignore[import-not-found]
import gymnasium
from stable_baselines3 import DQN  # type: ignore[import-not-found]
from stable_baselines3.common.callbacks import BaseCallback  # type: ignore[import-not-found]
from stable_baselines3.common.env_util import make_atari_env  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import VecFrameStack  # type: ignore[import-not-found]

from benchmarks.peers.record import FRAME_SKIP, FRAME_STACK, Recorder, arguments

# The authors' tuned values for Atari: DLR-RM/rl-baselines3-zoo, hyperparams/dqn.yml, section atari, at
# 22e3ff2450fd (April 2026). The replay takes 5.6 GB of memory.
SETTINGS: dict[str, Any] = {
    "policy": "CnnPolicy",
    "buffer_size": 100_000,
    "learning_rate": 1e-4,
    "batch_size": 32,
    "learning_starts": 100_000,
    "target_update_interval": 1_000,
    "train_freq": 4,
    "gradient_steps": 1,
    "exploration_fraction": 0.1,
    "exploration_final_eps": 0.01,
    "optimize_memory_usage": False,
}
TOTAL_STEPS = 10_000_000  # exploration falls over a tenth of them, whether or not the time allows so many


class Reporter(BaseCallback):
    """Called after every step of the environment; false ends the run."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def _on_step(self) -> bool:
        frames = FRAME_SKIP * self.model.num_timesteps
        for info in self.locals["infos"]:
            if "episode" in info:  # of Monitor, beneath the wrappers that clip rewards and end lives
                score = float(info["episode"]["r"])
                self._recorder.episode(frames, score, self.model.exploration_rate)
        self._recorder.progress(frames, self.model._n_updates, self.model.exploration_rate)
        return not self._recorder.is_over()


def main() -> None:
    flags = arguments()
    gymnasium.register_envs(ale_py)
    environment = make_atari_env(
        f"{flags.game}NoFrameskip-v4", seed=flags.seed, wrapper_kwargs={"frame_skip": FRAME_SKIP}
    )
    model = DQN(env=VecFrameStack(environment, FRAME_STACK), seed=flags.seed, **SETTINGS)
    packages = ("stable_baselines3", "torch", "ale-py", "gymnasium", "numpy")
    settings = {**SETTINGS, "total_steps": TOTAL_STEPS, "num_environments": 1}
    recorder = Recorder(flags.minutes, settings, packages)
    model.learn(TOTAL_STEPS, callback=Reporter(recorder))


if __name__ == "__main__":
    main()
