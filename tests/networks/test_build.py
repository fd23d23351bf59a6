from __future__ import annotations

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gorila_jax.config import NetworkConfig
from gorila_jax.networks.build import build_network
from gorila_jax.networks.torsos import StridedConv, flat_torso
from gorila_jax.types import ConfigError, EnvironmentSpec, Network

TINY = NetworkConfig(filters=(2, 3, 4), hidden_units=(5,))


def spec(shape: tuple[int, ...], dtype: Any = np.uint8, num_actions: int = 6) -> EnvironmentSpec:
    return EnvironmentSpec("Some-v0", shape, np.dtype(dtype), num_actions, 1, {})


def stacks_of(shape: tuple[int, ...], dtype: Any = np.uint8, batch: int = 3, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 256, (batch, *shape)).astype(dtype)
    return random.normal(size=(batch, *shape)).astype(dtype)


def shapes_of(network: Network) -> dict[str, dict[str, tuple[int, ...]]]:
    return jax.tree_util.tree_map(jnp.shape, jax.eval_shape(network.init, jax.random.PRNGKey(0)))


@pytest.mark.parametrize(("kernel", "stride"), [(8, 4), (4, 2), (3, 1)])
@pytest.mark.parametrize(("height", "width"), [(84, 84), (37, 50), (8, 11)])
def test_strided_conv_is_conv2d(kernel, stride, height, width):
    """The same parameters, outputs and gradients as the plain convolution, whatever VALID leaves over."""
    images = jax.random.normal(jax.random.PRNGKey(0), (2, height, width, 3))
    ours = hk.without_apply_rng(hk.transform(lambda x: StridedConv(5, kernel, stride, name="conv")(x)))
    plain = hk.without_apply_rng(
        hk.transform(lambda x: hk.Conv2D(5, kernel, stride, padding="VALID", name="conv")(x))
    )
    parameters = ours.init(jax.random.PRNGKey(1), images)
    for own, other in zip(
        jax.tree_util.tree_leaves(parameters),
        jax.tree_util.tree_leaves(plain.init(jax.random.PRNGKey(1), images)),
        strict=True,
    ):
        np.testing.assert_array_equal(own, other)
    parameters["conv"]["b"] = jax.random.normal(jax.random.PRNGKey(2), (5,))
    out = ours.apply(parameters, images)
    np.testing.assert_allclose(out, plain.apply(parameters, images), rtol=1e-5, atol=1e-5)

    def gradients(network):
        return jax.jit(jax.grad(lambda p, x: jnp.mean(jnp.sin(network.apply(p, x))), argnums=(0, 1)))(
            parameters, images
        )

    got, expected = gradients(ours), gradients(plain)
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(expected)
    for one, other in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_stride_that_does_not_divide_is_refused():
    conv = hk.transform(lambda x: StridedConv(5, 3, 2)(x))
    with pytest.raises(ValueError, match="stride of 2"):
        conv.init(jax.random.PRNGKey(0), jnp.zeros((1, 9, 9, 1)))


def test_the_nature_network_is_the_papers():
    network = build_network(NetworkConfig(), spec((84, 84), num_actions=18), frame_stack=4)
    assert shapes_of(network) == {
        "conv_0": {"w": (8, 8, 4, 32), "b": (32,)},
        "conv_1": {"w": (4, 4, 32, 64), "b": (64,)},
        "conv_2": {"w": (3, 3, 64, 64), "b": (64,)},
        "hidden_0": {"w": (7 * 7 * 64, 512), "b": (512,)},
        "head": {"w": (512, 18), "b": (18,)},
    }


@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("shape", [(84, 84), (40, 52, 3)])
def test_the_nature_network_is_plain_haiku(shape, centered):
    """Against the same network written with Haiku's own layers: bytes scaled, stack as channels."""
    config = NetworkConfig(filters=(8, 9, 10), hidden_units=(20,), centered_images=centered)
    network = build_network(config, spec(shape), frame_stack=4)
    stacks = stacks_of((4, *shape))

    def plain(x):
        for index, (filters, kernel, stride) in enumerate(((8, 8, 4), (9, 4, 2), (10, 3, 1))):
            x = jax.nn.relu(hk.Conv2D(filters, kernel, stride, padding="VALID", name=f"conv_{index}")(x))
        x = jax.nn.relu(hk.Linear(20, name="hidden_0")(hk.Flatten()(x)))
        return hk.Linear(6, name="head")(x)

    parameters = network.init(jax.random.PRNGKey(0))
    coloured = stacks.reshape(*stacks.shape[:4], -1)  # [B, S, H, W, C]
    channels = [coloured[:, k, :, :, c] for c in range(coloured.shape[-1]) for k in range(4)]
    images = np.stack(channels, axis=-1).astype(np.float32) / 255
    if centered:
        images -= images[:, ::4, ::4].mean(axis=(1, 2), keepdims=True)
    expected = hk.without_apply_rng(hk.transform(plain)).apply(parameters, images)
    got = network.apply(parameters, stacks)
    assert got.shape == (3, 6)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(84, 84), (86, 87), (40, 40, 3)])
def test_of_centered_images_how_bright_they_are_means_nothing(shape):
    network = build_network(NetworkConfig(centered_images=True), spec(shape), frame_stack=2)
    parameters = network.init(jax.random.PRNGKey(0))
    stacks = stacks_of((2, *shape)) // 2
    more = np.array([20, 90], np.uint8).reshape(
        1, 2, *(1 for _ in shape)
    )  # each image by as much as it likes
    expected = network.apply(parameters, stacks)
    np.testing.assert_allclose(network.apply(parameters, stacks + more), expected, atol=1e-4)
    of_floats = network.apply(parameters, (stacks + more).astype(np.float32) / 255)
    np.testing.assert_allclose(of_floats, expected, atol=1e-4)
    blank = np.full_like(stacks, 77)
    assert np.abs(network.apply(parameters, blank)).max() < 1e-6


def test_two_filters_leave_out_the_third_convolution():
    config = NetworkConfig(filters=(16, 32), hidden_units=(256,))
    shapes = shapes_of(build_network(config, spec((84, 84)), 4))
    assert set(shapes) == {"conv_0", "conv_1", "hidden_0", "head"}
    assert shapes["hidden_0"]["w"] == (9 * 9 * 32, 256)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int32])
def test_the_flat_torso_scales_bytes_only(dtype):
    stacks = stacks_of((2, 3, 5), dtype)
    expected = stacks.reshape(3, 30).astype(np.float32)
    got = flat_torso(jnp.asarray(stacks))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected / 255 if dtype == np.uint8 else expected, rtol=1e-6)


def test_the_flat_network_without_hidden_layers_is_linear():
    network = build_network(
        NetworkConfig(hidden_units=()), spec((3,), np.float32, num_actions=2), frame_stack=2
    )
    stacks = stacks_of((2, 3), np.float32)
    parameters = network.init(jax.random.PRNGKey(0))
    expected = stacks.reshape(3, 6) @ np.asarray(parameters["head"]["w"])
    np.testing.assert_allclose(network.apply(parameters, stacks), expected, rtol=1e-5, atol=1e-6)


def test_dueling_heads_add_the_value_to_advantages_without_their_mean():
    config = NetworkConfig(hidden_units=(5,), dueling=True)
    network = build_network(config, spec((3,), np.float32, num_actions=4), frame_stack=2)
    stacks = stacks_of((2, 3), np.float32)
    parameters = jax.tree_util.tree_map(np.asarray, network.init(jax.random.PRNGKey(0)))
    assert {name: p["w"].shape for name, p in parameters.items()} == {
        "value_hidden_0": (6, 5), "value_head": (5, 1), "advantage_hidden_0": (6, 5), "advantage_head": (5, 4)
    }  # fmt: skip

    def stream(name):
        hidden = np.maximum(stacks.reshape(3, 6) @ parameters[f"{name}_hidden_0"]["w"], 0)
        return hidden @ parameters[f"{name}_head"]["w"]

    advantages = stream("advantage")
    expected = stream("value") + advantages - advantages.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(network.apply(parameters, stacks), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "convolutions"),
    [
        ((84, 84), True),
        ((36, 36), True),
        ((40, 60, 3), True),
        ((35, 84), False),
        ((10, 5), False),
        ((3, 84, 84), False),
        ((4,), False),
        ((), False),
    ],
)
def test_auto_takes_convolutions_for_images_they_fit(shape, convolutions):
    network = build_network(TINY, spec(shape), frame_stack=1)
    assert ("conv_0" in shapes_of(network)) == convolutions
    parameters = jax.eval_shape(network.init, jax.random.PRNGKey(0))
    assert jax.eval_shape(network.apply, parameters, stacks_of((1, *shape))).shape == (3, 6)


def test_the_smallest_image_that_fits_is_the_one_said():
    for filters, least in (((2, 3, 4), 36), ((2, 3), 20)):
        config = NetworkConfig(torso="nature", filters=filters, hidden_units=())
        shapes = shapes_of(build_network(config, spec((least, least)), 1))
        assert shapes["head"]["w"] == (filters[-1], 6)
        with pytest.raises(ConfigError, match=f"{least} x {least}"):
            build_network(config, spec((least, least - 1)), 1)


@pytest.mark.parametrize(
    ("config", "shape", "said"),
    [
        (NetworkConfig(torso="resnet"), (84, 84), "auto, nature, flat"),
        (NetworkConfig(torso="nature"), (4,), "network.torso=flat"),
        (NetworkConfig(torso="nature"), (20, 20), "two filters"),
        (NetworkConfig(filters=(32,)), (84, 84), "two or three"),
        (NetworkConfig(filters=(32, 64, 64, 64)), (84, 84), "two or three"),
        (NetworkConfig(filters=(32, 0)), (84, 84), "network.filters is 0, it must be at least 1"),
        (NetworkConfig(hidden_units=(512, 0)), (84, 84), "network.hidden_units"),
    ],
)
def test_what_makes_no_network_is_refused_with_what_would(config, shape, said):
    with pytest.raises(ConfigError, match=said):
        build_network(config, spec(shape), 4)


def test_a_second_call_compiles_nothing():
    network = build_network(TINY, spec((36, 36)), frame_stack=2)
    apply = jax.jit(network.apply)
    parameters = network.init(jax.random.PRNGKey(0))
    first = apply(parameters, stacks_of((2, 36, 36), seed=0))
    second = apply(parameters, stacks_of((2, 36, 36), seed=1))
    assert apply._cache_size() == 1
    assert not np.array_equal(first, second)
