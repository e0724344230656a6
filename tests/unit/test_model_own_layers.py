"""Which linear layers of a user's own module an adapter can stand beside."""

from __future__ import annotations

import pytest
from torch import nn

from headway.errors import ModelError
from headway.facts.adapters import ALL_LINEAR, adapter_shape
from headway.model.own import callable_layers


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.table.weight


def test_layers_that_are_called_and_alone() -> None:
    encoder = nn.TransformerEncoderLayer(4, 2, batch_first=True)
    attention = nn.MultiheadAttention(4, 2)
    decoder = nn.TransformerDecoderLayer(4, 2)
    whole = nn.ModuleDict({"tied": Tied(), "encoder": encoder, "attention": attention, "mlp": nn.Linear(4, 6)})
    assert [layer.name for layer in callable_layers(whole)] == ["mlp"]
    assert [layer.name for layer in callable_layers(decoder)] == ["linear1", "linear2"]
    assert callable_layers(encoder) == []
    shape = adapter_shape(callable_layers(whole), ALL_LINEAR, 2)
    assert (shape.layers, shape.parameters) == (1, 2 * (4 + 6))


def test_a_module_without_such_a_layer_says_so() -> None:
    with pytest.raises(ModelError, match="has nothing to stand beside"):
        adapter_shape(callable_layers(Tied()), ALL_LINEAR, 2)
