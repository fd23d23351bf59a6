"""Optimizers by their optax names, and which of them a sharded server can apply exactly."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any

import optax

from gorila_jax.config import ParameterServerConfig
from gorila_jax.types import ConfigError

ELEMENTWISE = frozenset({
    "adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "amsgrad", "lion", "nadam",
    "nadamw", "radam", "rmsprop", "rprop", "sgd", "sign_sgd", "yogi",
})  # fmt: skip
"""Optimizers whose new value of a parameter depends on that parameter's own gradients and state only, so that
applying them to slices of the flat parameter vector equals applying them to the whole."""

LAYERWISE = frozenset({"adafactor", "fromage", "lamb", "lars", "novograd", "sm3"})
"""Optimizers that use norms or factors over a whole layer: a slice of the flat vector does not have these."""

CONSTANT_RATE = frozenset({"fromage", "rprop", "sm3"})
"""Optimizers whose learning rate optax wants to be a number."""


def make_optimizer(config: ParameterServerConfig, sharded: bool = False) -> optax.GradientTransformation:
    """The optax optimizer that `config` describes.

    Args:
      config: `optimizer`, `optimizer_options` and the learning rate with its decay are read.
      sharded: whether it is for slices of the flat parameter vector: then only the names in `ELEMENTWISE` do.

    Raises:
      ConfigError: an unknown name or option, a value of the wrong type, a learning rate that is not positive
        or cannot decay, or an optimizer that cannot be sharded. The message says what would do.
    """
    name = config.optimizer
    known = {n for n in ELEMENTWISE | LAYERWISE if hasattr(optax, n)}
    if name not in known:
        raise ConfigError(
            f"parameter_server.optimizer={name!r} is unknown{_close_matches(name, known)}. "
            f"Possible: {', '.join(sorted(known))}."
        )
    if sharded and name not in ELEMENTWISE:
        raise ConfigError(
            f"parameter_server.optimizer={name!r} cannot be sharded: it needs norms or factors over whole "
            "layers, and a shard holds only a slice of the flat parameter vector. Use one learner and "
            f"num_shards=1, or one of: {', '.join(sorted(ELEMENTWISE))}. To clip the global norm of the "
            "gradients, set learner.max_gradient_norm: the learner sees them whole."
        )
    if not (math.isfinite(config.learning_rate) and config.learning_rate > 0):
        raise ConfigError(
            f"parameter_server.learning_rate={config.learning_rate} has to be a finite number above 0."
        )
    build = getattr(optax, name)
    possible = _settable_options(build)
    options: dict[str, Any] = {}
    for option, value in config.optimizer_options:
        setting = f"parameter_server.optimizer_options: {option}={value!r}"
        if option == "learning_rate":
            raise ConfigError(f"{setting} belongs into parameter_server.learning_rate.")
        if option not in possible:
            raise ConfigError(
                f"{setting} is no option of optax.{name}{_close_matches(option, possible)}. "
                f"Possible: {', '.join(sorted(possible)) or 'none'}."
            )
        if option in options:
            raise ConfigError(f"{setting} is given twice (before: {options[option]!r}).")
        expected = _expected_type(option, possible[option])
        if expected is bool:
            fits = isinstance(value, bool)
        else:
            fits = isinstance(value, expected) and not isinstance(value, bool)
        if not fits:
            kind = {bool: "True or False", str: "the name of a dtype"}.get(expected, "a number")
            raise ConfigError(f"{setting} has the wrong type: optax.{name} wants {kind} there.")
        options[option] = value
    updates = config.learning_rate_decay_updates
    if updates and name in CONSTANT_RATE:
        raise ConfigError(
            f"parameter_server.learning_rate_decay_updates={updates}, but the learning rate of optax.{name} "
            "cannot decay: set it to 0, or choose another optimizer."
        )
    return build(learning_rate(config) if updates else config.learning_rate, **options)


def learning_rate(config: ParameterServerConfig) -> optax.Schedule:
    """The learning rate as a function of the updates that the server has made."""
    rate, updates = config.learning_rate, config.learning_rate_decay_updates
    if not updates:
        return optax.constant_schedule(rate)
    return optax.linear_schedule(rate, rate * config.learning_rate_final_share, updates)


def _settable_options(build: Any) -> Mapping[str, Any]:
    """Names and defaults of an optax function's options that a flag can express: no masks, no keys."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(build).parameters.items()
        if name != "learning_rate" and "mask" not in name
    }


def _expected_type(option: str, default: Any) -> Any:
    if isinstance(default, bool):
        return bool
    return str if "dtype" in option else (int, float)


def _close_matches(name: str, possible: Any) -> str:
    matches = difflib.get_close_matches(name, sorted(possible), n=3)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""
