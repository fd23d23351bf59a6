"""README's Python, run as it stands: a user's own network, environment and agent."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.end_to_end.programs import PATIENCE_S, ROOT

ROBOT = """
import gymnasium
import numpy as np


class Robot(gymnasium.Env):
    '''Says where to go, 0 or 1, and rewards going there; ten steps.'''

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        reward = float(action == self.wanted)
        self.steps += 1
        return self._observe(), reward, self.steps == 10, False, {}

    def _observe(self):
        self.wanted = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.wanted]


def make():
    return Robot()
"""

CHECK = """
from my_robot import make

environment = make()
observation, _ = environment.reset(seed=1)
policy.reset()
score, ended = 0.0, False
while not ended:
    observation, reward, ended, _, _ = environment.step(policy(observation))
    score += reward
print("score", score)
"""


@pytest.mark.learning
def test_a_network_an_environment_and_an_agent_of_ones_own(tmp_path):
    agent, script = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    (tmp_path / "my_agent.py").write_text(agent)
    (tmp_path / "my_robot.py").write_text(ROBOT)
    (tmp_path / "script.py").write_text(script + CHECK)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "score 10.0"
