"""GPTs of 10 million to 6.9 billion parameters on synthetic tokens, for benchmarks.

    dovetail run recipes/gpt.py

Shapes follow GPT-2 and GPT-3 up to 760m (the head is tied to the embedding) and Pythia above (it is not).
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import dovetail as dt


@dataclasses.dataclass(frozen=True)
class Size:
    depth: int
    width: int
    heads: int
    tied: bool
    vocabulary: int = 50304  # GPT-2's 50,257 rounded up to a multiple of 128, for the matrix units' sake


SIZES = {
    # With 50,304 tokens the two smallest would be little else than embedding.
    "10m": Size(depth=6, width=320, heads=5, tied=True, vocabulary=8192),
    "30m": Size(depth=8, width=512, heads=8, tied=True, vocabulary=8192),
    "124m": Size(depth=12, width=768, heads=12, tied=True),
    "350m": Size(depth=24, width=1024, heads=16, tied=True),
    "760m": Size(depth=24, width=1536, heads=16, tied=True),
    "1.4b": Size(depth=24, width=2048, heads=16, tied=False),
    "2.7b": Size(depth=32, width=2560, heads=20, tied=False),
    "6.9b": Size(depth=32, width=4096, heads=32, tied=False),
}


EMBEDDING_STD = 0.02  # torch's own 1.0 is far too much for a tied head
TILE = 16_777_259  # the least prime above 2**24


def gpt(
    size="10m",
    context=256,
    batch=4,
    learning_rate=3e-4,
    checkpointing=False,
    precision="fp32",
    seed=0,
    depth=None,
    clip=1.0,
    chunks=1,
    fused=False,
    fast=False,
    compiled=False,
) -> dt.Training:
    """`depth` replaces the size's own. `chunks` > 1 never holds all logits at once: 32 × 1,024 tokens' are 6.6 GB.
    `fast` fills the weights from one tile of random numbers, which takes seconds where torch takes minutes; `compiled`
    lets torch compile the blocks."""
    shape = SIZES[size] if depth is None else dataclasses.replace(SIZES[size], depth=depth)
    build = quickly if fast else GPT
    model = build(shape, context=context, checkpointing=checkpointing, chunks=chunks)
    for block in model.blocks if compiled else ():
        block.compile()
    loss = _loss if chunks == 1 else _chunked_loss
    held_out = Tokens(shape.vocabulary, context=context, batch=batch, seed=-1).draw(0)  # no task's seed is negative
    return dt.Training(
        model=model,
        batches=Tokens(shape.vocabulary, context=context, batch=batch, seed=seed),
        loss=loss,
        optimizer=adamw(model.parameters(), learning_rate=learning_rate, fused=fused),
        evaluate=lambda model: {"held_out_loss": loss(model, held_out.to(next(model.parameters()).device)).item()},
        clip_norm=clip,
        precision=precision,
    )


def adamw(parameters: Iterable[nn.Parameter], *, learning_rate=3e-4, fused=False) -> torch.optim.AdamW:
    # fused=None leaves the choice to torch, as if it were not given; False would also forbid its foreach default.
    return torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=fused or None)


class GPT(nn.Module):
    """A causal decoder with learned positions; one tensor flows from block to block."""

    def __init__(self, size: Size, *, context: int, checkpointing: bool = False, chunks: int = 1):
        super().__init__()
        self.checkpointing, self.chunks = checkpointing, chunks
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(context, size.width)
        for embedding in (self.embedding, self.positions):
            nn.init.normal_(embedding.weight, std=EMBEDDING_STD)
        self.blocks = nn.ModuleList(Block(size.width, heads=size.heads) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        if size.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        """The logits; with `targets` the mean loss instead, by chunks of tokens."""
        hidden = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            again = self.checkpointing and torch.is_grad_enabled()
            hidden = checkpoint(block, hidden, use_reentrant=False) if again else block(hidden)
        return self.head(self.norm(hidden)) if targets is None else self._mean_loss(hidden, targets)

    def _mean_loss(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        pieces = zip(hidden.flatten(0, 1).chunk(self.chunks), targets.flatten().chunk(self.chunks), strict=True)
        # Nothing in a chunk draws random numbers, so their state need not be kept for the second run.
        kept = {"use_reentrant": False, "preserve_rng_state": False}
        again = torch.is_grad_enabled()
        losses = [checkpoint(self._loss_of, *each, **kept) if again else self._loss_of(*each) for each in pieces]
        return torch.stack(losses).sum() / targets.numel()

    def _loss_of(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.norm(hidden)).float(), targets, reduction="sum")


def quickly(size: Size, *, context: int, checkpointing: bool = False, chunks: int = 1) -> GPT:
    """A GPT whose weights have torch's spread but come from one tile of random numbers.

    torch draws random numbers on one thread, minutes for 6.9 billion; copies are made by all. The tile's length is
    prime, so no row of a matrix repeats another, and each weight goes on where the last ended.
    """
    with torch.device("meta"):
        model = GPT(size, context=context, checkpointing=checkpointing, chunks=chunks)
    model.to_empty(device="cpu")
    if size.tied:
        model.head.weight = model.embedding.weight  # two weights after to_empty
    tile, start = torch.randn(TILE), 0
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Linear | nn.Embedding) and not (size.tied and module is model.head):
            std = EMBEDDING_STD if isinstance(module, nn.Embedding) else 1 / math.sqrt(3 * module.in_features)
            start = _fill(module.weight, tile, start=start, std=std)
    return model


@torch.no_grad()
def _fill(weight: torch.Tensor, tile: torch.Tensor, *, start: int, std: float) -> int:
    """Fill `weight` from `tile`, from `start` on and round again; gives where the next weight may start."""
    flat, done = weight.view(-1), 0
    while done < len(flat):
        count = min(len(tile) - start, len(flat) - done)
        torch.mul(tile[start : start + count], std, out=flat[done : done + count])
        done, start = done + count, (start + count) % len(tile)
    return start


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm and added to what came in."""

    def __init__(self, width: int, *, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward_in = nn.Linear(width, 4 * width, bias=False)
        self.feed_forward_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self._attend(self.attention_norm(hidden))
        inner = F.gelu(self.feed_forward_in(self.feed_forward_norm(hidden)))
        return hidden + self.feed_forward_out(inner)

    def _attend(self, hidden: torch.Tensor) -> torch.Tensor:
        split = self.attention_in(hidden).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = split.unbind(dim=2)  # each is batch × heads × context × width of a head
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.attention_out(mixed.transpose(1, 2).flatten(2))


class Tokens:
    """Walks of a Markov chain, 1,000 batches an epoch; any batch can be drawn without those before it.

    The chain walks a ring of 512 places by strides of 1, 2, 4 or 8, and every place has a token of its own.
    So the loss falls from log(vocabulary) through log(512) = 6.24 towards the strides' entropy of 1.21 nats.
    """

    places, strides, odds = 512, torch.tensor([1, 2, 4, 8]), torch.tensor([0.5, 0.25, 0.125, 0.125])

    def __init__(self, vocabulary: int, *, context: int, batch: int, seed: int):
        self.context, self.batch, self.seed = context, batch, seed
        # The chain is the same for every seed: a seed chooses walks, not the language.
        self.token_of = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(0))[: self.places]
        self.epoch = self.position = 0

    def __len__(self) -> int:
        return 1000

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < len(self):
            self.position += 1  # before the batch is handed out, so that a state taken after it leads to the next
            yield self.draw(self.epoch * len(self) + self.position - 1)
        self.epoch, self.position = self.epoch + 1, 0

    def draw(self, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1_000_003 * (self.seed + 1) + number)
        start = torch.randint(self.places, (self.batch, 1), generator=generator)
        choices = torch.multinomial(self.odds, self.batch * self.context, replacement=True, generator=generator)
        walk = torch.cat([start, self.strides[choices].view(self.batch, -1)], dim=1).cumsum(dim=1)
        return self.token_of[walk % self.places]

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.position = state["epoch"], state["position"]


def _loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    # A model that is bf16 throughout gives bf16 logits, too coarse for a loss; for the others float() does nothing new.
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())


def _chunked_loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return model(tokens[:, :-1], targets=tokens[:, 1:])


workload = dt.grid(gpt, size=["10m"], context=128, batch=2, learning_rate=[1e-3, 3e-4], steps=20, name="gpt")
# 6.86 billion parameters for one device: dovetail run recipes/gpt.py:large --device-memory 24GiB
large = dt.grid(
    gpt,
    size=["6.9b"],
    context=1024,
    batch=8,
    precision="bf16-pure",
    clip=None,
    chunks=8,
    fused=True,
    fast=True,
    steps=60,
    name="gpt-large",
)
