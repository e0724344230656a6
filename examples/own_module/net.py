"""A module of one's own: causal convolutions over tokens, with two heads. Headway asks for plain PyTorch only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """A residual block that looks back over `reach` tokens."""

    def __init__(self, width: int, reach: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.look = nn.Conv1d(width, 2 * width, reach)
        self.mix = nn.Linear(width, width)
        self.reach = reach

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # [rows, length, width]
        back = F.pad(self.norm(hidden).transpose(1, 2), (self.reach - 1, 0))
        return hidden + self.mix(F.glu(self.look(back), dim=1).transpose(1, 2))


class Net(nn.Module):
    """Logits for the next token, and for the one after it."""

    def __init__(self, vocab: int, width: int, depth: int, reach: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, reach) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.next = nn.Linear(width, vocab)
        self.after = nn.Linear(width, vocab)

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.tokens(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.norm(hidden)
        return self.next(hidden), self.after(hidden)


def make(vocab: int, width: int = 128, depth: int = 4, reach: int = 5) -> Net:
    """What `model: net:make` calls, with `model.options`; `vocab` is the tokenizer's where no option says it."""
    return Net(vocab, width, depth, reach)


def certify(vocab: int) -> Net:
    """The same kinds of modules, small: what `headway certify` proves the engine on."""
    return Net(vocab, width=16, depth=2, reach=3)
