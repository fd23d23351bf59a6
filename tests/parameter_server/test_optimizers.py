from __future__ import annotations

import logging
from typing import Any

import jax
import numpy as np
import optax
import pytest

from gorila_jax.config import ParameterServerConfig
from gorila_jax.parameter_server import ELEMENTWISE, learning_rate, make_optimizer, make_parameter_server
from gorila_jax.parameter_server.optimizers import CONSTANT_RATE, LAYERWISE
from gorila_jax.types import ConfigError
from tests.parameter_server.problem import filled, make_server, push, random_tree, values


def trained(server: Any, updates: int) -> np.ndarray:
    for i in range(updates):
        push(server, random_tree(i))
    return values(server.pull_policy()[1])


def plain_optax(name: str, updates: int) -> np.ndarray:
    optimizer = getattr(optax, name)(1e-2)
    parameters = random_tree(100)
    state = optimizer.init(parameters)

    @jax.jit
    def update(parameters: Any, state: Any, gradients: Any) -> tuple[Any, Any]:
        change, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, change), state

    for i in range(updates):
        parameters, state = update(parameters, state, random_tree(i))
    return values(parameters)


def check_equals_plain_optax(form: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    server = make_server(form, random_tree(100), optimizer=name, learning_rate=1e-2)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        trained(server, 1)
        assert "Compiling" in caplog.text
        caplog.clear()
        push(server, random_tree(1))
        assert "Compiling" not in caplog.text
    for i in range(2, 10):
        push(server, random_tree(i))
    np.testing.assert_allclose(values(server.pull_policy()[1]), plain_optax(name, 10), rtol=1e-6, atol=1e-7)
    assert server.status().accepted == 10


@pytest.mark.parametrize("name", sorted(ELEMENTWISE))
def test_every_elementwise_optimizer_over_shards_equals_optax_and_compiles_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_equals_plain_optax("three_shards", name, caplog)


@pytest.mark.parametrize("name", ["adam", "lamb", "rmsprop", "sgd"])
def test_device_form_equals_optax_and_compiles_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    check_equals_plain_optax("device", name, caplog)


def test_one_shard_equals_optax_and_compiles_once(caplog: pytest.LogCaptureFixture) -> None:
    check_equals_plain_optax("one_shard", "adam", caplog)


def test_options_reach_the_optimizer() -> None:
    options = (("decay", 0.95), ("eps", 0.01 / 32**2), ("centered", True))
    config = ParameterServerConfig(optimizer="rmsprop", learning_rate=2.5e-4, optimizer_options=options)
    expected = optax.rmsprop(2.5e-4, decay=0.95, eps=0.01 / 32**2, centered=True)
    updates = [
        values(optimizer.update(random_tree(0), optimizer.init(filled(0)))[0])
        for optimizer in (make_optimizer(config), expected)
    ]
    np.testing.assert_array_equal(*updates)


@pytest.mark.parametrize("form", ["device", "one_shard", "three_shards"])
def test_the_learning_rate_falls_in_a_straight_line_and_stays(form: str) -> None:
    server = make_server(
        form,
        filled(0),
        optimizer="sgd",
        learning_rate=2.0,
        learning_rate_decay_updates=4,
        learning_rate_final_share=0.5,
    )
    seen = [0.0]
    for _ in range(7):
        push(server, filled(-1))
        seen.append(float(values(server.pull_policy()[1])[0]))
    np.testing.assert_array_equal(np.diff(seen), [2.0, 1.75, 1.5, 1.25, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("form", ["device", "one_shard", "three_shards"])
def test_a_decay_goes_on_after_a_restore_and_counts_no_gradient_that_is_refused(form: str) -> None:
    settings = {"optimizer": "sgd", "learning_rate": 2.0, "learning_rate_decay_updates": 4}
    server = make_server(form, filled(0), **settings)
    push(server, filled(-1))
    push(server, filled(-1), finite=False)
    restored = make_server(form, filled(0), **settings)
    restored.restore(server.state())
    before = values(restored.pull_policy()[1])
    push(restored, filled(-1))
    step = values(restored.pull_policy()[1]) - before
    expected = learning_rate(ParameterServerConfig(**settings))(1)
    np.testing.assert_allclose(step, expected, rtol=1e-6)
    assert expected == pytest.approx(2.0 - 0.25 * (2.0 - 0.2))


@pytest.mark.parametrize("name", sorted((ELEMENTWISE | LAYERWISE) - CONSTANT_RATE))
def test_the_learning_rate_of_an_optimizer_can_decay(name: str) -> None:
    config = ParameterServerConfig(optimizer=name, learning_rate_decay_updates=10)
    optimizer = make_optimizer(config)
    optimizer.update(filled(1), optimizer.init(filled(0)), filled(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adamm"}, "did you mean adam"),
        ({"optimizer": "apply_updates"}, "Possible: .*adam.*sgd"),
        ({"optimizer_options": (("epss", 1.0),)}, "did you mean eps.*Possible: .*b1"),
        ({"optimizer": "adamw", "optimizer_options": (("mask", 1.0),)}, "no option of optax.adamw"),
        ({"optimizer_options": (("learning_rate", 1.0),)}, "parameter_server.learning_rate"),
        ({"optimizer_options": (("eps", 1.0), ("eps", 2.0))}, "given twice"),
        ({"optimizer_options": (("eps", "small"),)}, "a number"),
        ({"optimizer_options": (("eps", True),)}, "a number"),
        ({"optimizer_options": (("nesterov", 1),)}, "True or False"),
        ({"optimizer_options": (("mu_dtype", 16),)}, "name of a dtype"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"learning_rate": float("nan")}, "above 0"),
        ({"learning_rate_decay_updates": 9, "optimizer": "rprop"}, "another optimizer"),
    ],
)
def test_what_cannot_work_is_refused_with_what_would(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_optimizer(ParameterServerConfig(**settings))


@pytest.mark.parametrize("name", sorted(LAYERWISE))
def test_layerwise_optimizers_are_for_one_learner_and_one_shard(name: str) -> None:
    devices = jax.devices()[:1]
    config = ParameterServerConfig(optimizer=name)
    make_parameter_server(filled(1), config, [devices])
    with pytest.raises(ConfigError, match=rf"{name}.*cannot be sharded.*one of: .*adam"):
        make_parameter_server(filled(1), config, [devices, devices])


def test_global_norm_clipping_is_pointed_to_the_learner() -> None:
    with pytest.raises(ConfigError, match=r"learner\.max_gradient_norm"):
        make_optimizer(ParameterServerConfig(optimizer="lars"), sharded=True)
