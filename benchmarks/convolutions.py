"""The update of the Nature network in XLA's newer CPU runtime, with two kinds of convolutions: as they are
written in the paper, and ours, which lay blocks of pixels into the channels first. For `benchmarks.learner`.

XLA's older CPU runtime, the faster one, cannot compute the gradients of plain strided convolutions
(`prefer_fast_cpu_runtime`). A process has one runtime, and so these have a process of their own: this file's
program, which measures what its standard input asks for.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import haiku as hk
import jax
import numpy as np

from benchmarks.arms import update_arm
from benchmarks.interleaved import Arm
from benchmarks.report import run
from gorila_jax.config import Config, from_json_dict, to_json_dict
from gorila_jax.networks.memoryless import memoryless
from gorila_jax.runtime.devices import THUNKS
from gorila_jax.runtime.plan import make_plan
from gorila_jax.types import EnvironmentSpec, GorilaError, Network

SPACE_TO_DEPTH = "space_to_depth"
PLAIN = "plain"


def newer_runtime_arms(config: Config, stack: contextlib.ExitStack) -> list[Arm]:
    """`update_arm` with our convolutions and with plain ones, both in one child process."""
    environment = dict(os.environ)
    if environment.get("XLA_FLAGS"):  # without a choice of the older runtime that this process has made
        environment["XLA_FLAGS"] = environment["XLA_FLAGS"].replace(f"{THUNKS}=false", "")
    child = stack.enter_context(  # unbuffered: what a dead child did not take is not sent again at the end
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.convolutions"],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
    )
    assert child.stdin is not None
    assert child.stdout is not None
    questions, answers = child.stdin, child.stdout
    questions.write(f"{json.dumps(to_json_dict(config))}\n".encode())

    def arm(kind: str) -> Arm:
        def measure(seconds: float) -> dict[str, float]:
            with contextlib.suppress(BrokenPipeError):  # it has ended: then it gives no answer either
                questions.write(f"{kind} {seconds}\n".encode())
            answer = answers.readline()
            if not answer:
                raise GorilaError(f"the process that measures convolutions ended with code {child.wait()}")
            figures: dict[str, float] = json.loads(answer)
            return figures

        return measure

    return [arm(SPACE_TO_DEPTH), arm(PLAIN)]


def main() -> None:
    """Reads a configuration, then lines of "kind seconds", and answers each with its figures as JSON."""
    config = from_json_dict(json.loads(sys.stdin.readline()))
    jax.local_devices()  # starts jax with the newer runtime, before a plan could choose the older one
    plan = make_plan(config)
    plain = plan._replace(recipe=plan.recipe._replace(network=plain_nature_network))
    arms = {SPACE_TO_DEPTH: update_arm(plan), PLAIN: update_arm(plain)}
    for question in sys.stdin:
        kind, seconds = question.split()
        print(json.dumps(arms[kind](float(seconds))), flush=True)


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
