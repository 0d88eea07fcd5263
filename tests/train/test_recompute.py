"""`resident` with activations computed again: the same bits, with less held; or a refusal before any update."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.vocabulary import TechniqueRefused

STEPS = 4

SIZES: list[int] = []  # a loss may write to what stands here


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.drop = nn.Dropout(0.2)

    def forward(self, x, *, scale=1.0):
        return x + scale * self.drop(torch.tanh(self.drop(self.inner(x))))


class Tower(nn.Module):
    """Blocks in a list, the first of them called twice, with a norm whose buffers change."""

    def __init__(self, width=6, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for block in [self.blocks[0], *self.blocks]:
            x = block(x, scale=0.5)
        return self.head(x)


class Counting(Block):
    """Gives something else each time."""

    def forward(self, x, *, scale=1.0):
        self.count = getattr(self, "count", 0) + 1
        return super().forward(x) * self.count


class Growing(Block):
    """Keeps what it saw, as a cache does."""

    def forward(self, x, *, scale=1.0):
        self.kept = torch.cat([*([self.kept] if hasattr(self, "kept") else []), x.detach()])
        return super().forward(x) + self.kept.mean() * self.inner(self.kept).sum()


def sequence():
    layers = [nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Linear(6, 1))


def own_checkpoint():
    class Own(Tower):
        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    return Own()


MODELS = {
    "list": Tower,
    "sequence": sequence,
    "list in a sequence": lambda: nn.Sequential(Tower()),
    "own": own_checkpoint,
}


def training_of(make, *, precision="fp32", accumulate=1):
    torch.manual_seed(3)
    model = make()
    return Training(
        model=model,
        batches=[torch.randn(8, 6) for _ in range(STEPS * accumulate)],
        loss=lambda model, batch: (model(batch).float() - batch.sum(1, keepdim=True)).square().mean(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        precision=precision,
        accumulate=accumulate,
        clip_norm=1.0,
        evaluate=lambda model: {"norm": float(model(torch.ones(2, 6)).norm())},
    )


def trained(training, **knobs):
    session = RESIDENT.open(
        [SessionMember(training=training, seed=7)], device=torch.device("cpu"), threads=1, knobs=knobs
    )
    losses = [float(session.advance()[0].loss) for _ in range(STEPS)]
    tensors = {name: tensor.clone() for name, tensor in session.state().tensors.items()}
    metrics = session.evaluate()
    session.close()
    return losses, metrics, tensors


def same(one, other):
    assert one[:2] == other[:2]
    return one[2].keys() == other[2].keys() and all(torch.equal(one[2][name], other[2][name]) for name in one[2])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("more", [{}, {"accumulate": 2}, {"precision": "bf16"}, {"precision": "bf16-pure"}], ids=str)
def test_the_same_bits_as_with_everything_kept(name, more):
    if name == "sequence" and more.get("precision") == "bf16-pure":
        pytest.skip("torch has no BatchNorm of half weights on a CPU")
    kept = trained(training_of(MODELS[name], **more))
    assert same(trained(training_of(MODELS[name], **more), recompute=True), kept)


def test_in_parts_too():
    kept = trained(training_of(Tower), microbatches=4)
    assert same(trained(training_of(Tower), microbatches=4, recompute=True), kept)


def test_less_is_held_between_forward_and_backward():
    held: dict[bool, int] = {}
    for recompute in (False, True):
        SIZES.clear()

        def loss(model, batch):
            def pack(tensor):
                SIZES.append(tensor.nbytes)
                return tensor

            # Under a checkpoint of ours nothing inside it reaches these.
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                return model(batch).square().mean()

        training = dataclasses.replace(training_of(lambda: Tower(depth=12)), loss=loss)
        trained(training, **({"recompute": True} if recompute else {}))
        held[recompute] = sum(SIZES)
    assert held[True] < held[False] / 2


def test_the_model_is_left_as_it_was():
    training = training_of(Tower)
    before = {name: dict(vars(module)) for name, module in training.model.named_modules()}
    trained(training, recompute=True)
    assert not any("forward" in vars(module) for module in training.model.modules())
    assert {name: set(vars(module)) for name, module in training.model.named_modules()} == {
        name: set(found) for name, found in before.items()
    }


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 1)

    def forward(self, x):
        return self.inner(x)


class Adding(Block):
    def forward(self, x, *, scale=1.0):
        return self.inner(x + 1)  # whose gradients do not need x


class Overwriting(Tower):
    """Allowed where everything is kept."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Adding(6)])

    def forward(self, x):
        x = x + 0
        y = self.blocks[0](x)
        x.zero_()
        return self.head(y)


def with_blocks(kind):
    def make():
        model = Tower()
        model.blocks[1] = kind(6)
        return model

    return make


REFUSED = {
    "no blocks": (Plain, "must hold its blocks in an nn.ModuleList or an nn.Sequential"),
    "another output": (with_blocks(Counting), "a block must give the same when it is computed again"),
    "a cache": (with_blocks(Growing), "a block must (give|do) the same when"),
    "changed in place": (
        Overwriting,
        "a block must do the same when computed again; torch says: .* modified by an inplace operation",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_again_is_refused_before_anything_is_updated(name):
    make, message = REFUSED[name]
    training = training_of(make)
    before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
    with pytest.raises(TechniqueRefused, match=message):
        trained(training, recompute=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in training.model.state_dict().items())


def test_a_step_of_its_own_is_refused():
    training = dataclasses.replace(
        training_of(Tower), step=lambda training, batch: {"loss": torch.zeros(())}, loss=None
    )
    with pytest.raises(TechniqueRefused, match="where Dovetail takes the step"):
        trained(training, recompute=True)


def test_a_transformer_of_the_hub():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}

    def make():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
        tokens = torch.randint(0, 32, (STEPS, 2, 8), generator=torch.Generator().manual_seed(1))
        return Training(
            model=model,
            batches=list(tokens),
            loss=lambda model, batch: model(batch, labels=batch, use_cache=False).loss,
            optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        )

    assert same(trained(make(), recompute=True), trained(make()))
