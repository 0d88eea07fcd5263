"""A character transformer on the text of Python's manual.

    dovetail run recipes/charlm.py

The text differs between versions of Python (see text.py), so compare losses under one version only.
"""

import math
from collections.abc import Iterator

import torch
from text import manual
from torch import nn
from torch.nn import functional as F

import dovetail as dt

HELD_OUT_WINDOWS = 64


def charlm(width=128, depth=4, heads=4, context=128, batch=32, learning_rate=3e-4, dropout=0.1, seed=0) -> dt.Training:
    train, held_out = manual()
    characters = {character: token for token, character in enumerate(sorted(set(train + held_out)))}
    model = Transformer(len(characters), width=width, depth=depth, heads=heads, context=context, dropout=dropout)
    windows = windows_of(held_out, characters, context)[:HELD_OUT_WINDOWS]
    return dt.Training(
        model=model,
        batches=Batches(windows_of(train, characters, context), batch=batch, seed=seed),
        loss=next_character_loss,
        optimizer=torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95)),
        evaluate=lambda model: _evaluate(model, windows),
        evaluate_every=50,
        clip_norm=1.0,
    )


class Transformer(nn.Module):
    """A causal decoder with learned positions; its head is tied to the embedding."""

    def __init__(self, tokens: int, *, width: int, depth: int, heads: int, context: int, dropout: float):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(context, width)
        for embedding in (self.embedding, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # torch's own 1.0 is far too much for a tied head
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads=heads, dropout=dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.dropout(self.embedding(tokens) + self.positions(positions))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Block(nn.Module):
    def __init__(self, width: int, *, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.dropout(self._attend(self.attention_norm(hidden)))
        return hidden + self.dropout(self.feed_forward(hidden))

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        split = self.attention_in(hidden).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = split.unbind(dim=2)  # each is batch × heads × context × width of a head
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


class Batches:
    """Windows of text in an order that depends on the seed and the epoch alone, and can go on from anywhere."""

    def __init__(self, windows: torch.Tensor, *, batch: int, seed: int):
        self.windows, self.batch, self.seed = windows, batch, seed
        self.epoch = self.position = 0

    def __len__(self) -> int:
        return len(self.windows) // self.batch

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        order = torch.randperm(len(self.windows), generator=generator).split(self.batch)
        while self.position < len(self):
            self.position += 1  # before the batch is handed out, so that a state taken after it leads to the next
            yield self.windows[order[self.position - 1]]
        self.epoch, self.position = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


def windows_of(text: str, characters: dict[str, int], context: int) -> torch.Tensor:
    """Windows of context + 1 characters; each begins with the last character of the one before."""
    tokens = torch.tensor([characters[character] for character in text])
    return tokens.unfold(0, context + 1, context)


def next_character_loss(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def _evaluate(model: nn.Module, windows: torch.Tensor) -> dict[str, float]:
    loss = next_character_loss(model, windows.to(next(model.parameters()).device)).item()
    return {"held_out_loss": loss, "bits_per_character": loss / math.log(2)}


workload = dt.grid(
    charlm, width=[32, 64], depth=2, heads=2, context=64, batch=16, learning_rate=[1e-2, 3e-3], steps=400, name="charlm"
)
