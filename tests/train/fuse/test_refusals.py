"""What fuse refuses, in words that name what it is."""

import dataclasses
import random
import re
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dovetail.testing import programs
from dovetail.train import FUSE, RESIDENT, Training
from dovetail.train.fuse.attention_masks import ALLOWED, AttentionMasks, RecordedAttention
from dovetail.vocabulary import ProgramError, TechniqueRefused
from tests.train.fuse.gangs import convolutional, decoder, gang, perceptron, transformer


def losing(loss: Callable[[nn.Module, Any], Any]) -> Callable[[], Training]:
    return lambda: dataclasses.replace(perceptron(), loss=loss)


def plain(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def branching(model: nn.Module, batch: Any) -> torch.Tensor:
    loss = plain(model, batch)
    return loss if loss > 0 else -loss


def numbering(model: nn.Module, batch: Any) -> Any:
    loss = plain(model, batch)
    return loss, {"loss": loss.item()}


LOSSES: dict[str, tuple[Callable[[nn.Module, Any], Any], str]] = {
    "branches": (branching, r"it branches on the value of a tensor.*test_refusals\.py, line \d+"),
    "item": (numbering, r"it calls \.item\(\).*test_refusals\.py, line \d+"),
    "mask": (
        lambda model, batch: plain(model, batch) + batch[0][batch[0] > 0].sum(),
        "shapes must not depend on values",
    ),
    "noise": (lambda model, batch: plain(model, (batch[0] + torch.randn(6, 8), batch[1])), "drawn by dropout modules"),
    "dropout": (lambda model, batch: plain(model, (F.dropout(batch[0]), batch[1])), "drawn by dropout modules"),
    "python's generator": (
        lambda model, batch: plain(model, batch) * random.random(),
        "no numbers from Python's or NumPy's generators",
    ),
    "checkpointing": (
        lambda model, batch: F.cross_entropy(checkpoint(model, batch[0], use_reentrant=False), batch[1]),
        "backward must not run forward again",
    ),
    "its own error": (
        lambda model, batch: plain(model, (batch[0][:, :3], batch[1])),
        "the loss must run alone; it raised",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_cannot_be_stacked_is_refused_by_name(name: str) -> None:
    loss, words = LOSSES[name]
    members = gang(losing(loss), [{}, {}])
    reason = FUSE.refuse(members)
    assert reason is not None
    assert re.search(words, reason), reason


def test_what_a_loss_has_compiled_is_not_called_with_tensors_without_contents() -> None:
    # Inductor's kernels, which read memory, ended the process.
    called: list[type] = []

    def compiler(graph: torch.fx.GraphModule, example: list[torch.Tensor]) -> Callable[..., Any]:
        def run(*inputs: torch.Tensor) -> Any:
            called.extend(type(each) for each in inputs)
            return graph.forward(*inputs)

        return run

    entropy = torch.compile(lambda found, wanted: F.cross_entropy(found, wanted), backend=compiler)
    entropy(torch.ones(2, 4), torch.zeros(2, dtype=torch.int64))
    members = gang(losing(lambda model, batch: entropy(model(batch[0]), batch[1])), [{}, {}])
    assert FUSE.refuse(members) is None
    assert set(called) == {torch.Tensor}


def test_dropout_within_a_compiled_loss_is_refused_by_name() -> None:
    compiled: Any = torch.compile(plain, backend="eager")
    build = lambda: dataclasses.replace(perceptron(drop=0.1), loss=compiled)  # noqa: E731
    assert "must run as Python for fuse; '2' is compiled" in str(FUSE.refuse(gang(build, [{}, {}])))


DIFFERENT: dict[str, tuple[list[Callable[[], Training]], str]] = {
    "structure": ([perceptron, convolutional], "only one of the models has a module '6'"),
    "width": (
        [perceptron, lambda: _with(nn.Sequential(nn.Linear(8, 16)))],
        "only one of the models has a module",
    ),
    "an attribute": (
        [lambda: _with(nn.LeakyReLU(0.1)), lambda: _with(nn.LeakyReLU(0.2))],
        r"the model's '1'\.negative_slope is 0\.1 against 0\.2",
    ),
    "precision": ([decoder, lambda: decoder(precision="bf16")], "precision is 'fp32' against 'bf16'"),
    "what a loss reads": (
        [lambda: _smoothed(0.0), lambda: _smoothed(0.1)],
        "'smoothing', which the loss reads, is 0.0",
    ),
    "optimizer": (
        [perceptron, lambda: _stepped(torch.optim.SGD, lr=0.1)],
        "the optimizer is AdamW against SGD",
    ),
}


def _with(module: nn.Module) -> Training:
    model = nn.Sequential(nn.Linear(8, 4), module)
    return dataclasses.replace(perceptron(), model=model, optimizer=torch.optim.AdamW(model.parameters()))


def _stepped(kind: Any, **numbers: Any) -> Training:
    training = perceptron()
    return dataclasses.replace(training, optimizer=kind(training.model.parameters(), **numbers))


def _smoothed(smoothing: float) -> Training:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=smoothing)

    return dataclasses.replace(perceptron(), loss=loss)


@pytest.mark.parametrize("name", DIFFERENT)
def test_tasks_that_are_not_one_program_are_refused_by_where_they_differ(name: str) -> None:
    builds, words = DIFFERENT[name]
    reason = FUSE.refuse([programs.fresh(build) for build in builds])
    assert reason is not None
    assert reason.startswith("tasks must be one program; in task 1 against task 2, ")
    assert re.search(words, reason), reason


UNFIT: dict[str, tuple[Callable[[], Training], str]] = {
    "optimizer": (lambda: _stepped(torch.optim.RMSprop), "must be one of SGD, Adam, AdamW; it is RMSprop"),
    "amsgrad": (lambda: _stepped(torch.optim.Adam, amsgrad=True), "it has amsgrad=True"),
    "running mean without momentum": (lambda: _with(nn.BatchNorm1d(4, momentum=None)), r"it calls \.item\(\)"),
    "recurrent": (lambda: _with(_Recurrent()), "are recurrent"),
    "compiled": (lambda: _with(_compiled()), "'1' is scripted or compiled"),
    "sparse": (lambda: _with(nn.Embedding(2, 4, sparse=True)), "those of '1' are sparse"),
    "half": (lambda: _halved(), "trained parameters must be float32 or float64; '0.weight' is torch.bfloat16"),
}


def _compiled() -> nn.Module:
    module = nn.Tanh()
    module.compile(backend="eager")
    return module


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)[0]
        return found


def _halved() -> Training:
    training = perceptron()
    model = training.model.bfloat16()
    return dataclasses.replace(training, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_stack_can_train_is_refused(name: str) -> None:
    build, words = UNFIT[name]
    reason = FUSE.refuse(gang(build, [{}, {}]))
    assert reason is not None
    assert re.search(words, reason), reason


def test_a_model_that_two_tasks_share_is_refused() -> None:
    member = programs.fresh("tied")
    assert FUSE.refuse([member, member]) == "tasks must have models of their own; two share one, or a part of one"


def test_one_task_is_none_of_its_business() -> None:
    assert FUSE.refuse([programs.fresh("tied")]) == "fuse trains two tasks or more, got 1"


class Shuffling:
    """Batches whose order is that of a generator of their own; `hidden`, of one that nobody finds."""

    def __init__(self, *, hidden: bool) -> None:
        self.batches = list(perceptron().batches)
        generator = numpy.random.default_rng(3)
        self.order = [generator] if hidden else generator

    def __iter__(self) -> Any:
        generator = self.order[0] if isinstance(self.order, list) else self.order
        return iter([self.batches[n] for n in generator.permutation(len(self.batches))])


def test_looking_at_batches_changes_nothing_of_what_comes() -> None:
    def build() -> Training:
        return dataclasses.replace(perceptron(), batches=Shuffling(hidden=False))

    alone = RESIDENT.open([programs.fresh(build)], device=torch.device("cpu"), threads=1)
    fused = FUSE.open([programs.fresh(build) for _ in range(2)], device=torch.device("cpu"), threads=1)
    for _ in range(4):
        expected = float(alone.advance()[0].loss)
        assert [float(each.loss) for each in fused.advance(range(2))] == pytest.approx([expected] * 2, rel=1e-5)


def test_batches_that_looking_changes_are_refused() -> None:
    def build() -> Training:
        return dataclasses.replace(perceptron(), batches=Shuffling(hidden=True))

    reason = FUSE.refuse([programs.fresh(build) for _ in range(2)])
    assert reason is not None
    assert "the first batch must be the same whenever it is looked at" in reason


def test_adam_that_decays_apart_is_refused() -> None:
    def build() -> Training:
        made = perceptron()
        optimizer = torch.optim.Adam(made.model.parameters(), weight_decay=0.1, decoupled_weight_decay=True)
        return dataclasses.replace(made, optimizer=optimizer)

    reason = FUSE.refuse([programs.fresh(build) for _ in range(2)])
    assert reason is not None
    assert "decoupled_weight_decay=True, which AdamW is for" in reason


def test_attention_that_drops_must_have_one_rate() -> None:
    reason = FUSE.refuse(gang(transformer, [{"kind": "gpt2"}, {"kind": "gpt2", "drop": 0.2}]))
    assert reason is not None
    assert "pdrop is 0.1 against 0.2" in reason  # the configuration says so first
    members = gang(dropping, [{}, {"drop": 0.2}])
    assert "must have equal rates of dropout" in (FUSE.refuse(members) or "")


def test_attention_that_drops_must_draw_first_in_its_module() -> None:
    assert FUSE.refuse(gang(dropping, [{}, {}])) is None
    reason = FUSE.refuse(gang(dropping, [{"drops_before": True}] * 2))
    assert reason is not None
    assert "must be the first in its module's forward to draw" in reason


def test_kernels_of_accelerators_draw_by_themselves_unless_that_is_allowed() -> None:
    model, words = dropping().model, torch.ones(2, 3, 4)
    refusing = AttentionMasks(model, device=torch.device("cuda"), allow=())
    with pytest.raises(
        TechniqueRefused, match=r"draws inside its kernel here.*Training\(allow=\{'attention-masks'\}\)"
    ):
        refusing.record(words, words, 0.1)
    allowing = AttentionMasks(model, device=torch.device("cuda"), allow={ALLOWED})
    with RecordedAttention(allowing, found := []):
        model(words)
    assert [(draw.name, draw.call, draw.shape, draw.rate) for draw in found] == [("", 0, (2, 3, 3), 0.1)]


@pytest.mark.parametrize("given", ["attention-masks", {"attention"}])
def test_only_what_has_a_name_can_be_allowed(given: Any) -> None:
    with pytest.raises(ProgramError, match=r"Training.allow must be a set of names among \['attention-masks', "):
        dataclasses.replace(perceptron(), allow=given)


class _Dropping(nn.Module):
    def __init__(self, drop: float, drops_before: bool) -> None:
        super().__init__()
        self.inner, self.dropout, self.drops_before = nn.Linear(4, 4), nn.Dropout(drop), drops_before

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        words = self.dropout(words) if self.drops_before else words
        return self.inner(F.scaled_dot_product_attention(words, words, words, dropout_p=self.dropout.p))


def dropping(*, drop: float = 0.1, drops_before: bool = False) -> Training:
    """Passes the rate of a dropout on to attention."""
    model = _Dropping(drop, drops_before)
    return Training(
        model=model,
        batches=[torch.ones(2, 3, 4)],
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
