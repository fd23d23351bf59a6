"""The gradient of one update, computed with `jax.pmap` over the devices of one learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gorila_jax.config import LearnerConfig
from gorila_jax.rl import guards
from gorila_jax.rl.sums import total_of_squares
from gorila_jax.types import ConfigError, LossOutput, Parameters, Step

LossFn = Callable[[Parameters, Parameters, Step, jax.Array], LossOutput]
"""(online, target parameters, steps [B, W, ...], states [B, K] float32) to the loss of every item [B]."""


class LearnerMetrics(NamedTuple):
    """What one update says about itself, over the global batch."""

    loss: float  # weighted mean of the items' losses
    mean_abs_td_error: float  # unweighted
    gradient_norm: float  # global, before clipping
    finite: float  # 1 or 0


class UpdateOutput(NamedTuple):
    """Everything has a leading axis [D] and, but for the priorities, is equal on all devices."""

    gradients: Parameters
    finite: jax.Array  # [D] bool
    outlier: jax.Array  # [D] bool
    guard: guards.GuardState  # [D] each
    priorities: jax.Array  # [D, B/D] float32, new ones of the items
    metrics: jax.Array  # [D, 4] float32, the fields of LearnerMetrics: one array, so one transfer reads it


GradientFn = Callable[[Parameters, Parameters, guards.GuardState, Step, jax.Array, jax.Array], UpdateOutput]
"""(online, target parameters, guard state, steps [D, B/D, W, ...], states [D, B/D, K], weights [D, B/D]) to
an UpdateOutput."""


def check_batch_size(batch_size: int, num_devices: int) -> None:
    """Raises ConfigError, with sizes that work, unless every device gets the same share of a batch."""
    if batch_size < 1 or batch_size % num_devices:
        below = batch_size // num_devices * num_devices
        sizes = ", ".join(str(below + k * num_devices) for k in range(3) if below + k * num_devices > 0)
        raise ConfigError(
            f"learner.batch_size={batch_size} cannot be shared equally by {num_devices} devices: "
            f"use a multiple of {num_devices}, such as {sizes}"
        )


def make_gradient_fn(loss_fn: LossFn, config: LearnerConfig, devices: Sequence[jax.Device]) -> GradientFn:
    """Builds the pmap-ed gradient function of one learner.

    D devices give the gradient that one would give on the concatenated batch: each differentiates the mean
    over its own share, and the mean over devices comes after (differentiating a loss that is already summed
    over devices gives D times the gradient). No argument is donated: no output has a batch's shape, and the
    guard state may be read for a checkpoint meanwhile.

    Args:
      loss_fn: of the agent.
      config: `max_gradient_norm` and the outlier guard's settings count here.
      devices: D of them, this learner's own.

    Raises:
      ConfigError: D does not divide the batch size.
    """
    check_batch_size(config.batch_size, len(devices))

    def update(
        parameters: Parameters,
        target: Parameters,
        guard: guards.GuardState,
        steps: Step,
        state: jax.Array,
        weights: jax.Array,
    ) -> UpdateOutput:
        def weighted_mean(parameters: Parameters) -> tuple[jax.Array, LossOutput]:
            output = loss_fn(parameters, target, steps, state.astype(jnp.float32))
            return jnp.mean(weights * output.losses), output

        (loss, output), gradients = jax.value_and_grad(weighted_mean, has_aux=True)(parameters)
        loss, mean_abs_td_error, gradients = jax.lax.pmean(
            (loss, jnp.mean(output.abs_td_errors), gradients), "devices"
        )

        norm = jnp.sqrt(sum(map(total_of_squares, jax.tree_util.tree_leaves(gradients))))
        # One element that is not finite makes the norm not finite.
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        if config.max_gradient_norm:
            scale = jnp.minimum(1.0, config.max_gradient_norm / norm)
            gradients = jax.tree_util.tree_map(lambda gradient: scale * gradient, gradients)
        outlier = guards.is_outlier(guard, loss, config.outlier_deviations, config.outlier_warmup_losses)
        return UpdateOutput(
            gradients=gradients,
            finite=finite,
            outlier=outlier,
            guard=guards.observe_loss(guard, loss),
            priorities=output.priorities,
            metrics=jnp.stack(  # in the order of LearnerMetrics
                [loss, mean_abs_td_error, norm, finite.astype(jnp.float32)]
            ),
        )

    return jax.pmap(update, axis_name="devices", devices=devices)
