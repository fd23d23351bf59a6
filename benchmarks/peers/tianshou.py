"""Tianshou's DQN on one Atari game in EnvPool, run by the Python that has `tianshou.txt`.

That is release 1.0.0. In 2.0.1, the newest, every training step looks through the whole replay for missing
values, so that steps take longer and longer as it fills (thu-ml/tianshou issues 1265 and 1285); of the
releases without that, 1.0.0 is the fastest by the maintainers' own figures in the first of these issues.
"""

from __future__ import annotations

import contextlib
from typing import Any

import envpool
import numpy as np
import torch  # type: ignore[import-not-found]
from tianshou.data import Collector, VectorReplayBuffer  # type: ignore[import-not-found]
from tianshou.policy import DQNPolicy  # type: ignore[import-not-found]
from tianshou.trainer import OffpolicyTrainer  # type: ignore[import-not-found]

from benchmarks.peers.record import FRAME_SKIP, FRAME_STACK, Recorder, arguments

# The authors' values: thu-ml/tianshou v1.0.0, examples/atari/atari_dqn.py; EnvPool, and a batch of 64 for
# Pong, as README.md beside it recommends.
SETTINGS: dict[str, Any] = {
    "num_environments": 10,
    "epsilon_initial": 1.0,
    "epsilon_final": 0.05,
    "epsilon_decay_steps": 1_000_000,
    "buffer_size": 100_000,
    "learning_rate": 1e-4,
    "discount": 0.99,
    "n_steps": 3,
    "target_period_updates": 500,
    "steps_per_collect": 10,
    "updates_per_step": 0.1,
    "epoch_steps": 100_000,
}
BATCH_SIZE, BATCH_SIZES = 32, {"Pong": 64}
ENDLESS_EPOCHS = 1_000_000


class TimeIsUp(Exception):
    """Leaves the trainer, which knows no other end than its evaluations."""


class NatureNetwork(torch.nn.Module):
    """That of Mnih et al. 2015, as in examples/atari/atari_network.py; like there, pixels are not scaled."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(FRAME_STACK, 32, kernel_size=8, stride=4),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(32, 64, kernel_size=4, stride=2),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(64, 64, kernel_size=3),
            torch.nn.ReLU(inplace=True),
            torch.nn.Flatten(),
            torch.nn.Linear(64 * 7 * 7, 512),
            torch.nn.ReLU(inplace=True),
            torch.nn.Linear(512, num_actions),
        )

    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Any, Any]:
        """Q values [B, A] of the stacks `obs` [B, S, 84, 84] uint8, and `state` as it is."""
        return self.layers(torch.as_tensor(obs, dtype=torch.float32)), state


class CountedPool:
    """EnvPool that counts steps and adds up the raw rewards of every game, over all its lives.

    Tianshou resets an environment after every end of an episode, and EnvPool starts a new game when it is
    told to reset: a game with lives would never be played to its end. EnvPool's step after an end does what
    is meant: it goes on with the game after the loss of a life, and starts another after a game.
    """

    def __init__(self, pool: Any, recorder: Recorder) -> None:
        self.steps = 0
        self.epsilon = 0.0  # of the steps to come
        self._pool = pool
        self._recorder = recorder
        self._scores = np.zeros(len(pool))

    def __len__(self) -> int:
        return len(self._pool)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def step(self, action: np.ndarray, env_id: np.ndarray | None = None) -> Any:
        result = self._pool.step(action, env_id)
        truncated, info = result[3], result[4]
        environments = info["env_id"]
        game_over = np.asarray(info["terminated"], bool) | truncated
        self.steps += len(environments)
        self._scores[environments] += info["reward"]
        for environment in environments[game_over]:
            score = float(self._scores[environment])
            self._recorder.episode(FRAME_SKIP * self.steps, score, self.epsilon)
            self._scores[environment] = 0
        return result

    def reset(self, env_id: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        if env_id is None:
            self._scores[:] = 0
            return self._pool.reset()
        no_ops = np.zeros(len(env_id), np.int32)
        observation, _, _, _, info = self._pool.step(no_ops, np.asarray(env_id))
        return observation, info


def main() -> None:
    flags = arguments()
    np.random.seed(flags.seed)
    torch.manual_seed(flags.seed)
    settings = {**SETTINGS, "batch_size": BATCH_SIZES.get(flags.game, BATCH_SIZE)}
    pool = envpool.make_gymnasium(
        f"{flags.game}-v5",
        num_envs=settings["num_environments"],
        seed=flags.seed,
        episodic_life=True,
        reward_clip=True,
        frame_skip=FRAME_SKIP,
        stack_num=FRAME_STACK,
    )
    network = NatureNetwork(pool.action_space.n)
    policy = DQNPolicy(
        model=network,
        optim=torch.optim.Adam(network.parameters(), lr=settings["learning_rate"]),
        action_space=pool.action_space,
        discount_factor=settings["discount"],
        estimation_step=settings["n_steps"],
        target_update_freq=settings["target_period_updates"],
    )
    buffer = VectorReplayBuffer(
        settings["buffer_size"],
        buffer_num=len(pool),
        ignore_obs_next=True,
        save_only_last_obs=True,
        stack_num=FRAME_STACK,
    )
    recorder = Recorder(flags.minutes, settings, ("tianshou", "torch", "envpool", "gymnasium", "numpy"))
    counted = CountedPool(pool, recorder)
    collector = Collector(policy, counted, buffer, exploration_noise=True)
    collector.collect(n_step=settings["batch_size"] * len(pool))
    updates = -1

    def before_training_step(epoch: int, env_step: int) -> None:
        nonlocal updates
        updates += 1  # round(updates_per_step * steps_per_collect) = 1 in each training step before this one
        share = min(1.0, env_step / settings["epsilon_decay_steps"])
        initial, final = settings["epsilon_initial"], settings["epsilon_final"]
        counted.epsilon = initial + share * (final - initial)
        policy.set_eps(counted.epsilon)
        recorder.progress(FRAME_SKIP * counted.steps, updates, counted.epsilon)
        if recorder.is_over():
            raise TimeIsUp

    trainer = OffpolicyTrainer(
        policy=policy,
        train_collector=collector,
        test_collector=None,  # the authors' evaluations would take their time from training
        max_epoch=ENDLESS_EPOCHS,
        step_per_epoch=settings["epoch_steps"],
        step_per_collect=settings["steps_per_collect"],
        episode_per_test=0,
        batch_size=settings["batch_size"],
        update_per_step=settings["updates_per_step"],
        train_fn=before_training_step,
        test_in_train=False,
        show_progress=False,
        verbose=False,
    )
    with contextlib.suppress(TimeIsUp):
        trainer.run()


if __name__ == "__main__":
    main()
