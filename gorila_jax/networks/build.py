"""The one function that builds a network."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp

from gorila_jax.config import NetworkConfig, check_values
from gorila_jax.networks.lstm import LSTM, initial_lstm_state
from gorila_jax.networks.torsos import NATURE_KERNELS, NATURE_STRIDES, flat_torso, nature_torso
from gorila_jax.types import ConfigError, EnvironmentSpec, Inputs, Network, Parameters

_AUTO_MIN_PIXELS = 36  # the least height and width that all three convolutions fit on


def build_network(config: NetworkConfig, spec: EnvironmentSpec, frame_stack: int) -> Network:
    """Torso, recurrent core if any, dense layers with ReLU, and a linear head: one value per action.

    The feed-forward network is DQN's (Mnih et al. 2015). With `dueling` the dense layers and the head are
    there twice, for the value of the state and for the advantages of the actions, whose mean is taken off
    them (Wang et al. 2016, equation 9). With `core` "lstm" an LSTM stands between torso and dense layers; it
    also sees the last action, one-hot, and the last reward with `last_action_and_reward` (R2D2, Kapturowski
    et al. 2019, section 2.3).

    Args:
      config: sizes; `torso` "auto" takes the convolutions for images of 36 x 36 and more.
      spec: of the environment; images are [H, W] or [H, W, C].
      frame_stack: S, observations in one stack.

    Returns:
      The network, whose state has no values without a core. Unrolled, torso and heads take all steps at once.

    Raises:
      ConfigError: sizes that make no network, or a torso that does not fit the observations.
    """
    torso = _choose_torso(config, spec)

    def forward(inputs: Inputs, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Inputs [T, B, ...] and a state [B, K] to Q values [T, B, A] and the state after them."""
        steps, size = inputs.first.shape
        stacks = inputs.stack.reshape(steps * size, *inputs.stack.shape[2:])
        features = (
            nature_torso(stacks, config.filters, config.centered_images)
            if torso == "nature"
            else flat_torso(stacks)
        )
        if config.last_action_and_reward:
            features = jnp.concatenate([features, _last_ones(inputs, spec.num_actions)], axis=-1)
        if config.core == "lstm":
            lstm = LSTM(config.core_units, name="lstm")
            hidden, state = lstm(features.reshape(steps, size, -1), inputs.first, state)
            features = hidden.reshape(steps * size, -1)
        if config.dueling:
            value = _head(features, config.hidden_units, 1, "value_")
            advantage = _head(features, config.hidden_units, spec.num_actions, "advantage_")
            values = value + advantage - jnp.mean(advantage, axis=-1, keepdims=True)
        else:
            values = _head(features, config.hidden_units, spec.num_actions)
        return values.reshape(steps, size, -1), state

    transformed = hk.without_apply_rng(hk.transform(forward))
    units = config.core_units if config.core == "lstm" else 0

    @jax.jit  # in one piece it compiles in half the time
    def init(key: jax.Array) -> Parameters:
        stack = jnp.zeros((1, 1, frame_stack, *spec.observation_shape), spec.observation_dtype)
        nothing = jnp.zeros((1, 1))
        inputs = Inputs(stack, nothing.astype(jnp.int32), nothing, nothing.astype(bool))
        return transformed.init(key, inputs, initial_lstm_state(1, units))

    def step(parameters: Parameters, inputs: Inputs, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        values, state = transformed.apply(parameters, Inputs(*(field[None] for field in inputs)), state)
        return values[0], state

    return Network(
        init=init,
        initial_state=lambda parameters, size: initial_lstm_state(size, units),
        step=step,
        unroll=transformed.apply,
    )


def _last_ones(inputs: Inputs, num_actions: int) -> jax.Array:
    """The last action, one-hot, and the last reward: [T * B, A + 1] float32, 0 where there was none."""
    last = jnp.concatenate(
        [jax.nn.one_hot(inputs.last_action, num_actions), inputs.last_reward[..., None]], axis=-1
    )
    return jnp.where(inputs.first[..., None], 0.0, last).reshape(-1, num_actions + 1)


def _head(features: jax.Array, hidden_units: Sequence[int], outputs: int, prefix: str = "") -> jax.Array:
    """Dense layers with ReLU and a linear one: [B, features] to [B, outputs]."""
    hidden = features
    for index, units in enumerate(hidden_units):
        hidden = jax.nn.relu(hk.Linear(units, name=f"{prefix}hidden_{index}")(hidden))
    return hk.Linear(outputs, name=f"{prefix}head")(hidden)


def _choose_torso(config: NetworkConfig, spec: EnvironmentSpec) -> str:
    """Names nature or flat. Raises ConfigError with what would work."""
    check_values(config, "network")
    shape = spec.observation_shape
    is_image = len(shape) in (2, 3)
    if config.torso == "flat" or (
        config.torso == "auto" and not (is_image and min(shape[:2]) >= _AUTO_MIN_PIXELS)
    ):
        return "flat"
    if len(config.filters) not in (2, 3):
        raise ConfigError(f"network.filters is {config.filters}, it must be two or three numbers")
    least = _least_pixels(len(config.filters))
    if not is_image or min(shape[:2]) < least:
        alternative = ", two filters for images of 20 x 20 and more" if len(config.filters) == 3 else ""
        raise ConfigError(
            f"network.torso=nature with {len(config.filters)} filters needs images [height, width] or "
            f"[height, width, channels] of {least} x {least} and more, but {spec.name} observes {shape}: "
            f"use network.torso=flat{alternative}"
        )
    return "nature"


def _least_pixels(num_filters: int) -> int:
    """The height and width at which the last of the convolutions has just one output."""
    pixels = 1
    for kernel, stride in reversed(list(zip(NATURE_KERNELS, NATURE_STRIDES, strict=True))[:num_filters]):
        pixels = (pixels - 1) * stride + kernel
    return pixels
