"""The numbers that a transformer's config holds, and the widths that follow from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Dimensions:
    """A config's numbers, its architecture's own where a key is absent. positions: 0 where it names none."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    positions: int
    tied: bool

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads together; the value heads have the same."""
        return self.kv_heads * self.head_dim

    @property
    def attention(self) -> int:
        """Weights of the four projections."""
        return 2 * self.hidden * (self.query + self.key_value)

    @property
    def bias(self) -> int:
        """Biases of query, key and value."""
        return self.query + 2 * self.key_value
