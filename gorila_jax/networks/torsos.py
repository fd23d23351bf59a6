"""From stacks of observations to a feature vector."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp

NATURE_KERNELS = (8, 4, 3)  # and strides, of Mnih et al. 2015, Methods, "Model architecture"
NATURE_STRIDES = (4, 2, 1)


def as_float(observation: jax.Array) -> jax.Array:
    """float32: bytes scaled to [0, 1], everything else as it is."""
    values = observation.astype(jnp.float32)
    return values / 255.0 if observation.dtype == jnp.uint8 else values


def space_to_depth(images: jax.Array, block: int) -> jax.Array:
    """[B, H, W, C] to [B, H/block, W/block, block * block * C]; H and W must be multiples of `block`."""
    batch, height, width, channels = images.shape
    blocks = images.reshape(batch, height // block, block, width // block, block, channels)
    return blocks.transpose(0, 1, 3, 2, 4, 5).reshape(
        batch, height // block, width // block, block * block * channels
    )


@jax.custom_vjp
def valid_conv(images: jax.Array, w: jax.Array) -> jax.Array:
    """[B, H, W, C] and [k, k, C, F] to [B, H-k+1, W-k+1, F]: stride 1, no padding.

    Its gradient by the weights is one matrix product of the images with the k * k shifts of the output's
    gradient laid side by side. XLA would make it a convolution whose kernel is as large as the image, which
    takes a CPU three times as long.
    """
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, w, (1, 1), "VALID", dimension_numbers=layout)


def _valid_conv_forward(images: jax.Array, w: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return valid_conv(images, w), (images, w)


def _valid_conv_backward(
    saved: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    images, w = saved
    kernel, _, channels, filters = w.shape
    rest = kernel - 1
    shifts = [
        jnp.pad(gradient, ((0, 0), (i, rest - i), (j, rest - j), (0, 0)))
        for i in range(kernel)
        for j in range(kernel)
    ]
    side_by_side = jnp.concatenate(shifts, axis=-1).reshape(-1, kernel * kernel * filters)
    by_w = side_by_side.T @ images.reshape(-1, channels)
    by_w = by_w.reshape(kernel, kernel, filters, channels).transpose(0, 1, 3, 2)
    padded = jnp.pad(gradient, ((0, 0), (rest, rest), (rest, rest), (0, 0)))
    by_images = valid_conv(padded, w[::-1, ::-1].transpose(0, 1, 3, 2))
    return by_images, by_w


valid_conv.defvjp(_valid_conv_forward, _valid_conv_backward)


class StridedConv(hk.Module):
    """`hk.Conv2D` with VALID padding and a stride that divides the kernel, in another order of computing.

    A k x k convolution of stride s equals a k/s x k/s one of stride 1 over blocks of s x s pixels laid into
    the channels, with the weights laid out likewise. CPUs run the second form about three times faster. The
    parameters are those of `hk.Conv2D`: `w` [k, k, C, F] and `b` [F], equally initialised.
    """

    def __init__(self, filters: int, kernel: int, stride: int, name: str | None = None):
        super().__init__(name=name)
        if kernel % stride:
            raise ValueError(f"a stride of {stride} does not divide a kernel of {kernel}")
        self._filters = filters
        self._kernel = kernel
        self._stride = stride

    def __call__(self, images: jax.Array) -> jax.Array:
        """[B, H, W, C] float32 to [B, (H-k)//s + 1, (W-k)//s + 1, F]."""
        _, height, width, channels = images.shape
        kernel, stride, filters = self._kernel, self._stride, self._filters
        blocks = kernel // stride
        shape = (kernel, kernel, channels, filters)
        init = hk.initializers.TruncatedNormal(stddev=(kernel * kernel * channels) ** -0.5)
        w = hk.get_parameter("w", shape, jnp.float32, init=init)
        b = hk.get_parameter("b", (filters,), jnp.float32, init=jnp.zeros)

        # VALID never looks at what is left over at the right and bottom.
        used_height = (height - kernel) // stride * stride + kernel
        used_width = (width - kernel) // stride * stride + kernel
        depth = space_to_depth(images[:, :used_height, :used_width], stride)
        w = w.reshape(blocks, stride, blocks, stride, channels, filters).transpose(0, 2, 1, 3, 4, 5)
        w = w.reshape(blocks, blocks, stride * stride * channels, filters)
        return valid_conv(depth, w) + b[None, None, None, :]


def nature_torso(stacks: jax.Array, filters: Sequence[int]) -> jax.Array:
    """The convolutions of DQN (Mnih et al. 2015): 8x8/4, 4x4/2 and, for three filters, 3x3/1, each with ReLU.

    Args:
      stacks: [B, S, H, W] or [B, S, H, W, C]; the S images of a stack become channels.
      filters: of each convolution.

    Returns:
      [B, features] float32.
    """
    images = jnp.moveaxis(stacks, 1, -1)
    hidden = as_float(images.reshape(*images.shape[:3], -1))
    layers = zip(filters, NATURE_KERNELS, NATURE_STRIDES, strict=False)  # two or three of them
    for index, (size, kernel, stride) in enumerate(layers):
        hidden = jax.nn.relu(StridedConv(size, kernel, stride, name=f"conv_{index}")(hidden))
    return hidden.reshape(hidden.shape[0], -1)


def flat_torso(stacks: jax.Array) -> jax.Array:
    """[B, S, *observation_shape] to [B, S * values of an observation] float32."""
    return as_float(stacks.reshape(stacks.shape[0], -1))
