"""How an episode's end is named, and what it does to the discount: the one place where gamma enters."""

from __future__ import annotations

import numpy as np

from gorila_jax.types import End


def label_ends(game_over: np.ndarray, time_limit: np.ndarray, life_loss: np.ndarray) -> np.ndarray:
    """Gives each environment exactly one `End`.

    Several may be true at once. A game over wins over everything: nothing follows it. A time limit wins
    over a life loss: the whole game ends there, and whoever adds up its score has to learn of that.

    Args:
        game_over, time_limit, life_loss: [E] bool.

    Returns:
        [E] uint8, an `End`.
    """
    end = np.full(np.shape(game_over), End.NONE, np.uint8)
    end[np.asarray(life_loss, bool)] = End.LIFE_LOSS
    end[np.asarray(time_limit, bool)] = End.TIME_LIMIT
    end[np.asarray(game_over, bool)] = End.GAME_OVER
    return end


def end_discounts(end: np.ndarray, discount: float) -> np.ndarray:
    """Gamma, or 0 where nothing may be bootstrapped: after a game over and a life loss.

    Args:
        end: [E] uint8, an `End`.
        discount: gamma, of one step.

    Returns:
        [E] float32.
    """
    keeps_value = (end == End.NONE) | (end == End.TIME_LIMIT)
    return np.where(keeps_value, np.float32(discount), np.float32(0.0))
