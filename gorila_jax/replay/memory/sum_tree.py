"""A binary tree of partial sums, for draws in proportion to a weight."""

from __future__ import annotations

import numpy as np


class SumTree:
    """Weights of `capacity` slots, all 0 at first. A change and a draw each cost log2(capacity).

    A node is always computed anew as the sum of its two children, so rounding errors never pile up.
    """

    def __init__(self, capacity: int):
        self._leaves = 1 << max(0, capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._leaves, np.float64)  # [1] is the root, [0] is unused

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def get(self, slots: np.ndarray) -> np.ndarray:
        """The weights [N] float64 of slots [N]."""
        return self._nodes[self._leaves + slots]

    def set(self, slots: np.ndarray, weights: np.ndarray) -> None:
        """Sets weights [N]; where a slot comes twice, the last one holds."""
        nodes = self._leaves + np.asarray(slots, np.int64)
        self._nodes[nodes] = weights
        while nodes.size and nodes[0] > 1:
            nodes = np.unique(nodes // 2)
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def set_one(self, slot: int, weight: float) -> None:
        """`set` for one slot, without the cost of small arrays: every insert comes through here."""
        node = self._leaves + slot
        self._nodes[node] = weight
        while node > 1:
            node //= 2
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def draw(self, uniforms: np.ndarray) -> np.ndarray:
        """Slots [N] int64 for uniforms [N] in [0, 1). The total must be above 0; weight 0 is never drawn."""
        rest = uniforms * self.total
        nodes = np.ones(uniforms.shape, np.int64)
        while nodes.size and nodes[0] < self._leaves:
            left = 2 * nodes
            weight = self._nodes[left]
            # The rounded rest may reach the sum of both children: then it must not fall into an empty half.
            right = (rest >= weight) & (self._nodes[left + 1] > 0)
            rest = np.where(right, rest - weight, rest)
            nodes = left + right
        return nodes - self._leaves
