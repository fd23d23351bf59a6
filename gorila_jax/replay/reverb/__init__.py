"""The replay on DeepMind Reverb servers. The only package that imports Reverb and TensorFlow."""

import tensorflow as tf

# TensorFlow only carries data here. Left alone it would take all the memory of the learners' GPUs.
tf.config.set_visible_devices([], "GPU")

from gorila_jax.replay.reverb.replay import ReverbReplay  # noqa: E402
from gorila_jax.replay.reverb.server import ReplayServer  # noqa: E402

__all__ = ["ReplayServer", "ReverbReplay"]
