"""Pictures of environments that draw none themselves."""

from __future__ import annotations

import numpy as np

_MIN_SIDE_PIXELS = 160


def draw_observation(observation: np.ndarray) -> np.ndarray:
    """One observation in grey, black its least number and white its greatest, enlarged to be seen.

    Args:
        observation: of any shape; the last two axes are rows and columns, a vector is one row. Of more
            axes the first entries are drawn, but a last axis of 3 uint8 is taken for colours.

    Returns:
        [H, W, 3] uint8.
    """
    if observation.ndim == 3 and observation.shape[-1] == 3 and observation.dtype == np.uint8:
        picture = observation
    else:
        plane = np.atleast_2d(observation)
        while plane.ndim > 2:
            plane = plane[0]
        plane = np.nan_to_num(plane.astype(np.float64))
        low, high = (0.0, 255.0) if observation.dtype == np.uint8 else (plane.min(), plane.max())
        grey = (plane - low) / max(high - low, np.finfo(np.float64).tiny) * 255
        picture = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    scale = max(1, -(-_MIN_SIDE_PIXELS // min(picture.shape[:2])) if picture.shape[0] > 1 else 16)
    return np.ascontiguousarray(picture.repeat(scale, axis=0).repeat(scale, axis=1))
