"""One reading for all: each task ends as it would have alone, and batches are made once."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import RESIDENT, TOGETHER, SessionMember, Training, TrainingSession
from dovetail.vocabulary import TechniqueRefused

CPU = torch.device("cpu")
MODELS = {
    "narrow": lambda: nn.Linear(4, 1),
    "wide": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)),
    "deep": lambda: nn.Sequential(
        *(layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.Tanh())), nn.Linear(4, 1)
    ),
}


class Made:
    """Batches that say how many were made. A generator of its own is carried from epoch to epoch."""

    def __init__(self, *, count: int = 5, seed: int = 7) -> None:
        self.made, self._count = 0, count
        self._generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self._count):
            self.made += 1
            yield torch.randn(3, 4, generator=self._generator)


class Stateful(Made):
    """Batches that resume by a state of their own."""

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


def training(name: str, batches: Any = None, **fields: Any) -> Training:
    torch.manual_seed(sum(map(ord, name)))
    model = MODELS[name]()

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        batch.mul_(2.0)  # what one does to its batch must not be seen by another
        return model(batch).pow(2).mean()

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    batches = Made() if batches is None else batches
    return Training(
        **{"model": model, "batches": batches, "loss": loss, "optimizer": optimizer, "shares": "made", **fields}
    )


def members(*names: str, **fields: Any) -> list[SessionMember]:
    return [SessionMember(training=training(name, **fields), seed=number) for number, name in enumerate(names)]


def opened(gang: list[SessionMember]) -> TrainingSession:
    return TOGETHER.open(gang, device=CPU, threads=1)


def alone(name: str, steps: int, *, seed: int, **fields: Any) -> dict[str, torch.Tensor]:
    session = RESIDENT.open([SessionMember(training=training(name, **fields), seed=seed)], device=CPU, threads=1)
    for _ in range(steps):
        session.advance()
    return session.state().tensors


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class TestTogether(TechniqueConformance):
    technique = TOGETHER
    _size = 2

    def gang(self, program: str) -> list[SessionMember]:
        both = [self.fresh(program) for _ in range(2)]
        for member in both:
            member.training.shares = program
        return both


@pytest.mark.parametrize("fields", [{}, {"accumulate": 2}], ids=["plain", "accumulated"])
@pytest.mark.parametrize("batches", [Made, Stateful])
def test_each_ends_as_alone_and_batches_are_made_once(batches: type[Made], fields: dict[str, Any]) -> None:
    gang = [SessionMember(training=training(n, batches(), **fields), seed=k) for k, n in enumerate(MODELS)]
    session = opened(gang)
    before = [member.training.batches.made for member in gang]  # type: ignore[attr-defined]  # to see the first
    for _ in range(6):
        session.advance(range(3))
    for number, name in enumerate(MODELS):
        assert_same(session.state(number).tensors, alone(name, 6, seed=number, batches=batches(), **fields))
    made = [member.training.batches.made - seen for member, seen in zip(gang, before, strict=True)]  # type: ignore[attr-defined]
    assert made[0] >= 6
    assert made[1:] == [0, 0]


def test_whoever_ends_disturbs_nobody_and_whoever_waits_goes_on() -> None:
    session = opened(members("narrow", "wide", "deep"))
    for live in [(0, 1, 2), (0, 1, 2), (1, 2), (1, 2), (2,), (1, 2), (1,), (1, 2)]:
        session.advance(live)
    for number, (name, steps) in enumerate([("narrow", 2), ("wide", 7), ("deep", 7)]):
        assert_same(session.state(number).tensors, alone(name, steps, seed=number))


def test_whoever_is_left_alone_after_a_resume_goes_on() -> None:
    first = opened(members("narrow", "wide"))
    for _ in range(7):
        first.advance((0, 1))
    second = opened(members("narrow", "wide"))
    for number in range(2):
        second.load(first.state(number), number)
    for live in [(0, 1), (0, 1), (0, 1), (1,), (1,)]:
        second.advance(live)
    assert_same(second.state(1).tensors, alone("wide", 12, seed=1))


def test_one_that_is_ahead_reads_for_itself_until_another_stands_there() -> None:
    ahead = RESIDENT.open([SessionMember(training=training("wide"), seed=1)], device=CPU, threads=1)
    for _ in range(7):
        ahead.advance()
    gang = members("narrow", "wide")
    session = opened(gang)
    session.load(ahead.state(), 1)
    for live in [(0, 1), (0, 1), *[(0,)] * 7, (0, 1), (0, 1)]:
        session.advance(live)
    read = gang[1].training.batches.made  # type: ignore[attr-defined]
    session.advance((0, 1))
    assert gang[1].training.batches.made == read, "at the same place, it is handed what the other reads"  # type: ignore[attr-defined]
    assert_same(session.state(0).tensors, alone("narrow", 12, seed=0))
    assert_same(session.state(1).tensors, alone("wide", 12, seed=1))


@pytest.mark.parametrize(
    ("gang", "reason"),
    [
        (lambda: members("narrow"), "two tasks or more, got 1"),
        (lambda: members("narrow", "wide", shares=""), "must name the batches that they share"),
        (lambda: [*members("narrow"), *members("wide", shares="other")], r"found \['made', 'other'\]"),
        (lambda: [*members("narrow"), *members("wide", accumulate=2)], r"accumulate of \[1, 2\]"),
        (
            lambda: [*members("narrow"), *members("wide", batches=Made(seed=8))],
            "first batch of task 2 of 2 is not that",
        ),
        (lambda: members("narrow", "wide", batches=Drawing()), "Python's or NumPy's generators"),
    ],
)
def test_what_is_not_the_same_is_refused(gang: Any, reason: str) -> None:
    with pytest.raises(TechniqueRefused, match=reason):
        opened(gang())


class Drawing:
    """Batches in an order that is NumPy's to say."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(4):
            yield torch.full((3, 4), float(numpy.random.rand()))


def test_an_error_says_whose_it_is() -> None:
    def broken(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    session = opened([*members("narrow", "wide"), *members("deep", loss=broken)])
    with pytest.raises(Exception, match="no") as error:
        session.advance((0, 2))
    assert error.value.member == 1  # type: ignore[attr-defined]
