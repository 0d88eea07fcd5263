"""Models of every shape: spilled, each trains bit by bit as it does when resident, or it is said why not."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

from dovetail.testing import programs
from dovetail.train import SPILL, Training
from dovetail.vocabulary import ProgramError, TechniqueRefused
from tests.train import ranked
from tests.train.spill.towers import (
    CPU,
    Build,
    Precise,
    Tower,
    adamw,
    assert_trains_as_resident,
    resident,
    run,
    spilled,
    squared,
    streaming,
    training,
)

Made = nn.Module | Training


def linear(*, outputs: int = 8) -> nn.Linear:
    return nn.Linear(8, outputs)


class Towering(nn.Module):
    """A tower with something before it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.tower = linear(), Tower(3)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tower(torch.tanh(self.before(self.stem(x))))
        return found


class Recurrent(Towering):
    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, batch_first=True)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.recurrent(x[None])[0][0]
        return found


class Reading(Towering):
    """Uses the weights of a module that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.read = linear()

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.read.weight, self.read.bias)


class Iterating(Towering):
    """Goes through a sequence without calling it. The tail is large, so that the sequence is one segment."""

    def __init__(self) -> None:
        super().__init__()
        self.several = nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 8))
        self.up, self.down = nn.Linear(8, 64), nn.Linear(64, 8)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.several:
            x = module(x)
        found: torch.Tensor = self.down(self.up(x))
        return found


class Coder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 2), nn.Linear(2, 8)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.encoder(x)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.decoder(self.encode(x))
        return found


class Encoding(Iterating):
    """Calls a method of a module, not the module."""

    def __init__(self) -> None:
        super().__init__()
        self.several = Coder()

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.several.decoder(self.several.encode(x))
        return self.down(self.up(found))


class Table(nn.Module):
    """Gives its weights themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self) -> torch.Tensor:
        return self.weight[:8]


class Positions(Towering):
    """Uses what a module gave it after others were called, and that is a part of the module's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = Table(), linear()

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found = self.table()
        return self.inner(x) * found


class Adding(Positions):
    """Autograd keeps nothing of what it adds."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found = self.table()
        return self.inner(x) + found


class Early(Towering):
    """Reads a weight of a module that it will call."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.tower.layers[1].bias


class Late(Towering):
    """Reads a weight of a module that it has called, and adds it, so that autograd does not keep it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + self.stem.bias.sum()


class Words(nn.Module):
    """A language model that multiplies by its embedding's weights, which it reads."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(8, 8, **options), nn.Sequential(linear(), linear(), linear())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(self.embedding(x.argmax(1))) @ self.embedding.weight.t()
        return found.mean(1, keepdim=True)


class Looking(Towering):
    """Looks words up."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 8, **options)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.embedding(x.argmax(1))
        return found


class Shared(nn.Module):
    """One module with two parents."""

    def __init__(self) -> None:
        super().__init__()
        shared = linear()
        self.one, self.two = nn.Sequential(shared, linear()), nn.Sequential(shared, linear())
        self.head = linear(outputs=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))
        return found


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(8, 1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x @ weight for weight in self.weights]).sum(0)


class Alternating(Towering):
    """Uses a part of itself in every other call only."""

    def __init__(self) -> None:
        super().__init__()
        self.sometimes, self.calls = linear(), 0

    def before(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.sometimes(x) if self.calls % 2 else x
        return found


class Graph(Towering):
    """Multiplies by a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.eye(8).to_sparse(), persistent=False)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.edges, x)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.cfloat) @ self.weight).real


class Blocks(nn.Module):
    """Blocks of several linear layers, with checkpoints of the program's own around each."""

    def __init__(self, *, reentrant: bool = False, again: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(linear() for _ in range(3))) for _ in range(3))
        self.head, self._reentrant, self._again = linear(outputs=1), reentrant, again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_(self._reentrant)
        for block in [*self.blocks, *([self.blocks[0]] if self._again else [])]:
            x = checkpoint(_through, block, x, use_reentrant=self._reentrant)
        found: torch.Tensor = self.head(x)
        return found


def _through(block: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    for layer in block:
        x = torch.tanh(layer(x))
    return x


class Named(nn.Module):
    """A frozen body whose blocks are called with names, between things that train."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = linear(), linear(outputs=1)
        self.blocks = nn.ModuleList(_NamedBlock() for _ in range(10)).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(values=x)
        found: torch.Tensor = self.head(x)
        return found


class _NamedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = linear(), linear()

    def forward(self, *, values: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.two(self.one(values)))


class Counted(nn.Module):
    """Counts its calls in a buffer that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = linear(), linear()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        found: torch.Tensor = self.two(self.one(x))
        return found


class Twice(Towering):
    """Calls one module at both ends."""

    def before(self, x: torch.Tensor) -> torch.Tensor:
        return self.stem(self.tower.layers[0](x))


class Residual(nn.Module):
    """Adds to the input of a block in place, which nothing has kept for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = linear(), linear(outputs=1)
        self.blocks = nn.ModuleList(_Squashing() for _ in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x.add_(block(x))
        found: torch.Tensor = self.head(x)
        return found


class _Squashing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = linear(), linear()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.one(torch.tanh(x)))
        return found


class Attention(nn.MultiheadAttention):
    """The user's own of torch's."""


class Attending(Towering):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(8, 2, dropout=0.1, batch_first=True)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.attention(x[None], x[None], x[None])[0][0]
        return found


class Layer(nn.TransformerEncoderLayer):
    """The user's own of torch's, which reads its children's weights when it evaluates."""


class Transforming(Towering):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer(8, 2, 8, batch_first=True)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x[None])[0]
        return found


class Stashing(torch.autograd.Function):
    """Keeps a weight for backward by a way that torch does not see."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Own(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Stashing.apply(x, self.weight)
        return found + self.bias


class Detached(nn.Linear):
    """Uses its weight where no gradient comes of it, before it uses it where one does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(torch.tanh(functional.linear(x, self.weight.detach())), self.weight, self.bias)


def pruned() -> nn.Module:
    model = Tower()
    for layer in model.layers:
        prune.random_unstructured(layer, "weight", amount=0.3)
    return model


def normalised() -> nn.Module:
    model = Tower()
    for layer in model.layers:
        nn.utils.spectral_norm(layer)
    return model


def parametrized() -> nn.Module:
    model = Tower()
    parametrizations.spectral_norm(model.layers[1])
    parametrizations.weight_norm(model.layers[2])
    return model


def penalised() -> Training:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return squared(model, batch) + 1e-3 * torch.stack([p.square().sum() for p in model.parameters()]).sum()

    return training(Tower(), loss=loss)


def needing() -> Training:
    return training(Tower(), loss=lambda model, batch: squared(model, (batch[0].clone().requires_grad_(), batch[1])))


def gradient_penalised() -> Training:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = batch[0].clone().requires_grad_()
        found = model(inputs)
        (gradient,) = torch.autograd.grad(found.sum(), inputs, create_graph=True)
        return functional.mse_loss(found, batch[1]) + gradient.square().mean()

    return training(Tower(), loss=loss)


def of(make: Callable[[], Made]) -> Build:
    def build() -> Training:
        made = make()
        return made if isinstance(made, Training) else training(made)

    return build


LARGE = {"device_bytes": 1 << 20}  # segments are blocks, not layers
CASES: dict[str, tuple[Callable[[], Made], dict[str, Any]]] = {
    "alternating": (Alternating, {}),
    "alternating, accumulated": (lambda: training(Alternating(), accumulate=2, clip_norm=1e9), {}),
    "attention of the user's own": (Attending, {}),
    "checkpoints of several segments": (Blocks, {"depth": 3}),
    "complex": (lambda: nn.Sequential(linear(), Complex(), Tower(2)), {}),
    "counts calls": (lambda: nn.Sequential(*(Counted() for _ in range(10)), linear(outputs=1)), LARGE),
    "counts calls, recomputed": (
        lambda: nn.Sequential(*(Counted() for _ in range(10)), linear(outputs=1)),
        {"recompute": True, **LARGE},
    ),
    "encoding": (Encoding, {}),
    "frozen and named": (Named, LARGE),
    "frozen and named, recomputed": (Named, {"recompute": True, **LARGE}),
    "function of its own": (lambda: nn.Sequential(linear(), *(Own(8, 8) for _ in range(3)), linear(outputs=1)), {}),
    "gives its weights": (Positions, {}),
    "gradient penalty": (gradient_penalised, {}),
    "iterating": (Iterating, {}),
    "language model that reads its embedding": (Words, {}),
    "language model that reads its embedding, with room": (Words, {"depth": 3}),
    "list of parameters": (Listed, {}),
    "looking up": (Looking, {}),
    "normalised by hooks": (normalised, {}),
    "parametrized": (parametrized, {}),
    "parametrized, recomputed": (parametrized, {"recompute": True}),
    "penalty on weights": (penalised, {}),
    "precise inside autocast": (lambda: training(Precise(), precision="bf16"), {}),
    "reading": (Reading, {}),
    "reads before it calls": (Early, {}),
    "reads when it is over": (Late, {"depth": 3}),
    "precise inside autocast, recomputed": (lambda: training(Precise(), precision="bf16"), {"recompute": True}),
    "recurrent": (Recurrent, {}),
    "recurrent, recomputed": (Recurrent, {"recompute": True}),
    "sparse matrix": (Graph, {}),
    "transformer layer of the user's own": (Transforming, {}),
    "twice": (Twice, {}),
    "twice, recomputed": (Twice, {"recompute": True, "depth": 2}),
    "two parents": (Shared, {}),
}
# Those that nobody could blame spill for refusing, with the reason.
REFUSABLE = {
    "embedding with a greatest norm",
    "gives its weights",
    "gives its weights, added",
    "in place, recomputed",
    "normalised by hooks",
    "penalty on weights",
    "pruned",
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_it_trains_as_resident_or_says_why_not(case: str) -> None:
    make, knobs = CASES[case]
    build = of(make)
    with contextlib.ExitStack() as stack:
        if case in REFUSABLE:
            stack.enter_context(contextlib.suppress(TechniqueRefused, ProgramError))
        session = spilled(build, **knobs)
        stack.callback(session.close)
        assert any(not segment.kept for segment in session.segments) or case == "list of parameters"
        assert_trains_as_resident(session, build)


# What is computed again is held until its gradients are there, and may be more at once than there was room for.
HOLDING: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "checkpoints of several segments": (Blocks, {}),
    "twice, recomputed": (Twice, {"recompute": True}),
}


@pytest.mark.parametrize("case", sorted(HOLDING))
def test_more_held_at_once_than_there_was_room_for_gets_room(case: str) -> None:
    make, knobs = HOLDING[case]
    build = of(make)
    with streaming():
        member = programs.fresh(build)
        session = SPILL.open([member], device=CPU, threads=1, knobs={"device_bytes": 8 << 10, "depth": 1, **knobs})
        before = session.room.depth
        assert_trains_as_resident(session, build)
        assert session.room.depth > before == 1
        session.close()


@pytest.mark.parametrize("case", sorted(HOLDING))
def test_more_held_at_once_than_the_budget_allows_is_out_of_memory(case: str) -> None:
    make, knobs = HOLDING[case]
    session = spilled(of(make), **knobs)
    with pytest.raises(torch.OutOfMemoryError, match="streaming room"):
        session.advance()
    session.close()


@pytest.mark.parametrize(
    "make",
    [Transforming, Attending, Reading, Recurrent],
)
def test_evaluating_gives_what_resident_gives(make: Callable[[], nn.Module]) -> None:
    def build() -> Training:
        held_out = torch.randn(8, 8)
        return training(make(), evaluate=lambda model: {"mean": float(model(held_out).mean())})

    expected, session = resident(build), spilled(build)
    for _ in range(2):
        found, wanted = session.evaluate(), expected.evaluate()
        # Whole on its device torch evaluates an encoder layer by a kernel of its own, which rounds otherwise on x86.
        assert found == (pytest.approx(wanted, rel=1e-6) if make is Transforming else wanted)
        session.advance()
        expected.advance()
    session.close()


def test_weights_that_forward_writes_are_kept_so_that_nothing_is_lost() -> None:
    def build() -> Training:
        layers = [layer for _ in range(6) for layer in (ranked.Writing(8, 8), nn.Tanh())]
        return training(nn.Sequential(*layers, nn.Linear(8, 1)))

    session = spilled(build)
    assert_trains_as_resident(session, build)
    session.close()


def test_what_is_unfrozen_on_the_way_is_refused() -> None:
    made = spilled(lambda: training(Tower()))
    made.advance()
    made._training.model.layers[2].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    with pytest.raises(TechniqueRefused, match=r"'layers.2.weight' was frozen or unfrozen since"):
        made.advance()
    made.close()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_that_no_optimizer_takes_count_to_one_norm_only(accumulate: int) -> None:
    def build() -> Training:
        model = Tower()
        rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("layers.1.")]
        return training(model, optimizer=lambda _: adamw(rest), accumulate=accumulate, clip_norm=0.05)

    session = spilled(build)
    assert_trains_as_resident(session, build)
    session.close()


def test_what_only_evaluating_computes_in_full_is_precise() -> None:
    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.autocast("cpu", enabled=False):
            return {"mean": float(model.layers[2](torch.ones(8, 8)).mean())}  # type: ignore[index, operator, union-attr]

    def build() -> Training:
        return training(Tower(), precision="bf16", evaluate=evaluate)

    expected, session = resident(build), spilled(build)
    for _ in range(3):
        assert session.evaluate() == expected.evaluate()
        assert float(session.advance()[0].loss) == float(expected.advance()[0].loss)
    session.close()


@pytest.mark.parametrize("case", ["alternating", "recurrent", "twice", "two parents", "counts calls"])
def test_models_that_call_their_modules_go_on_streaming(case: str) -> None:
    make, knobs = CASES[case]
    session = spilled(of(make), **knobs)
    streamed = {segment.name for segment in session.segments if not segment.kept}
    session.advance()
    assert {segment.name for segment in session.segments if not segment.kept} == streamed != set()
    session.close()


# What cannot be


def test_sparse_gradients_are_a_programs_mistake() -> None:
    def build() -> Training:
        return training(Looking(sparse=True), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))

    for session in (spilled(build), spilled(build, device_bytes=1 << 20)):
        with pytest.raises(ProgramError, match=r"'embedding.weight' must be dense .*sparse=False"):
            session.advance()
        session.close()


def test_reentrant_checkpoints_are_exact_where_gradients_come_once() -> None:
    def build() -> Training:
        return training(Blocks(reentrant=True))

    assert_trains_as_resident(spilled(build, depth=3), build)


def test_reentrant_checkpoints_are_a_programs_mistake_where_gradients_come_twice() -> None:
    session = spilled(lambda: training(Blocks(reentrant=True, again=True)), depth=3)
    with pytest.raises(ProgramError, match=r"come once in a backward pass; .* use_reentrant=False"):
        session.advance()
    session.close()


def test_a_part_that_never_runs_stays_as_it_is() -> None:
    class Unused(Towering):
        def __init__(self) -> None:
            super().__init__()
            self.unused = linear()

    def build() -> Training:
        return training(Unused())

    session = spilled(build)
    before = {name: tensor.clone() for name, tensor in session.state().tensors.items()}
    _, after = run(session, 3)
    moved = {name for name, tensor in before.items() if not torch.equal(after.tensors[name], tensor)}
    assert moved == {name for name in before if "unused" not in name}
    session.close()
