"""From stacks of observations to a feature vector."""

from __future__ import annotations

from collections.abc import Sequence

import haiku as hk
import jax
import jax.numpy as jnp

NATURE_KERNELS = (8, 4, 3)  # and strides, of Mnih et al. 2015, Methods, "Model architecture"
NATURE_STRIDES = (4, 2, 1)
WORD_BYTES = 4


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
        w, b = self._parameters(channels)  # w: [rows, rows of a block, columns, columns of a block, C, F]
        images = images[:, : self._used(height), : self._used(width)]
        depth = space_to_depth(images, self._stride)
        w = w.transpose(0, 2, 1, 3, 4, 5).reshape(*w.shape[:3:2], -1, self._filters)
        return valid_conv(depth, w) + b[None, None, None, :]

    def of_bytes(self, stacks: jax.Array, offsets: jax.Array | None = None) -> jax.Array:
        """The same of stacks [B, S, H, W] uint8, whose S images are channels and whose bytes count as 0 to 1.

        For blocks of four pixels. They are moved as one word, and become floats where they stay. `offsets`
        [B, S] float32, on the scale of 0 to 1, are taken off the pixels of each image.
        """
        batch, size, height, width = stacks.shape
        stride = self._stride
        if stride != WORD_BYTES:
            raise ValueError(f"a word has {WORD_BYTES} bytes, and the stride is {stride}")
        w, b = self._parameters(size)
        height, width = self._used(height), self._used(width)
        pixels = stacks[:, :, :height, :width].reshape(
            batch, size, height // stride, stride, width // stride, stride
        )
        words = jax.lax.bitcast_convert_type(pixels, jnp.uint32).transpose(0, 2, 4, 1, 3)
        words = words.reshape(*words.shape[:3], 1, size * stride)
        bits = jnp.arange(0, 8 * WORD_BYTES, 8, dtype=jnp.uint32)[None, None, None, :, None]
        depth = ((words >> bits) & 255).astype(jnp.int32).astype(jnp.float32) / 255.0
        if offsets is not None:
            depth -= jnp.repeat(offsets, stride, axis=1)[:, None, None, None]
        w = w.transpose(0, 2, 3, 4, 1, 5).reshape(*w.shape[:3:2], -1, self._filters)
        return valid_conv(depth.reshape(*depth.shape[:3], -1), w) + b[None, None, None, :]

    def _parameters(self, channels: int) -> tuple[jax.Array, jax.Array]:
        """w [k/s, s, k/s, s, C, F], whose rows and columns are split into blocks, and b [F]."""
        kernel, stride, filters = self._kernel, self._stride, self._filters
        shape = (kernel, kernel, channels, filters)
        init = hk.initializers.TruncatedNormal(stddev=(kernel * kernel * channels) ** -0.5)
        w = hk.get_parameter("w", shape, jnp.float32, init=init)
        b = hk.get_parameter("b", (filters,), jnp.float32, init=jnp.zeros)
        blocks = kernel // stride
        return w.reshape(blocks, stride, blocks, stride, channels, filters), b

    def _used(self, pixels: int) -> int:
        """Of so many rows or columns those that VALID looks at; it leaves over the last ones."""
        return (pixels - self._kernel) // self._stride * self._stride + self._kernel


def nature_torso(stacks: jax.Array, filters: Sequence[int], centered: bool = False) -> jax.Array:
    """The convolutions of DQN (Mnih et al. 2015): 8x8/4, 4x4/2 and, for three filters, 3x3/1, each with ReLU.

    Pixels are never negative, so that an even background moves a filter's output by the sum of its weights:
    at the start it is below zero everywhere for half of the filters, and a few steps of Adam can push the
    others there, from where no gradient brings them back. Of many filters enough live on; of few, sometimes
    none. With `centered` each image, and each of its colours, is less the mean of its pixels (of
    every fourth row and column, which is a sixteenth of them).

    Args:
      stacks: [B, S, H, W] or [B, S, H, W, C]; the S images of a stack become channels.
      filters: of each convolution.
      centered: whether images are less their means, which is not in the paper.

    Returns:
      [B, features] float32.
    """
    layers = zip(filters, NATURE_KERNELS, NATURE_STRIDES, strict=False)  # two or three of them
    first, *rest = [
        StridedConv(size, kernel, stride, name=f"conv_{index}")
        for index, (size, kernel, stride) in enumerate(layers)
    ]
    # [B, S] or [B, S, C]
    means = jnp.mean(as_float(stacks[:, :, ::4, ::4]), axis=(2, 3)) if centered else None
    if stacks.dtype == jnp.uint8 and stacks.ndim == 4:
        hidden = jax.nn.relu(first.of_bytes(stacks, means))
    else:
        pixels = as_float(stacks)
        if means is not None:
            pixels -= means[:, :, None, None]
        images = jnp.moveaxis(pixels, 1, -1)
        hidden = jax.nn.relu(first(images.reshape(*images.shape[:3], -1)))
    for layer in rest:
        hidden = jax.nn.relu(layer(hidden))
    return hidden.reshape(hidden.shape[0], -1)


def flat_torso(stacks: jax.Array) -> jax.Array:
    """[B, S, *observation_shape] to [B, S * values of an observation] float32."""
    return as_float(stacks.reshape(stacks.shape[0], -1))
