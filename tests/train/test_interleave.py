"""Interleaved tasks train as if each were alone; whose turn it is; what they share."""

import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dovetail.planning.techniques.resident import CUDA_HOST_BYTES
from dovetail.planning.techniques.spill import DoesNotFit
from dovetail.testing import programs
from dovetail.testing.techniques import TechniqueConformance
from dovetail.train import INTERLEAVE, RESIDENT, SPILL, SessionMember, Training
from dovetail.train import interleave as interleave_module
from dovetail.train.interleave import InterleaveSession, Turnstile
from dovetail.vocabulary import ProgramError, TechniqueRefused, TrainingError
from tests.train.spill.towers import Precise, Tower, squared, training

CPU = torch.device("cpu")
PATIENCE = interleave_module._PATIENCE
CALLS = [0, 0]


class TestInterleave(TechniqueConformance):
    """Two unlike tasks."""

    technique = INTERLEAVE

    def gang(self, program: str) -> list[SessionMember]:
        """The program and another."""
        return [programs.fresh(program), programs.fresh("momentum", seed=1)]


@pytest.mark.parametrize("budget", [3 << 14, 1 << 30])
def test_a_gang_trains_as_its_members_would_alone(budget: int) -> None:
    names = ["dropout", "bf16", "shared", "accumulate"]
    gang = INTERLEAVE.open(
        [programs.fresh(name, seed=seed) for seed, name in enumerate(names)],
        device=CPU,
        threads=1,
        knobs={"device_bytes": budget, "depth": 1},
    )
    alone = [RESIDENT.open([programs.fresh(name, seed=seed)], device=CPU, threads=1) for seed, name in enumerate(names)]
    for _ in range(6):
        found = [float(report.loss) for report in gang.advance(range(len(names)))]
        assert found == [float(one.advance()[0].loss) for one in alone]
    for number, one in enumerate(alone):
        state = gang.state(number)
        for name, tensor in one.state().tensors.items():
            assert torch.equal(state.tensors[name], tensor), (names[number], name)
    gang.close()


def test_a_gang_computes_in_full_where_a_program_does() -> None:
    def build() -> Training:
        return training(Precise(), precision="bf16")

    members = [programs.fresh(build, seed=seed) for seed in range(2)]
    gang = INTERLEAVE.open(members, device=CPU, threads=1, knobs={"device_bytes": 1 << 14, "depth": 1})
    alone = [RESIDENT.open([programs.fresh(build, seed=seed)], device=CPU, threads=1) for seed in range(2)]
    for _ in range(3):
        found = [float(report.loss) for report in gang.advance(range(2))]
        assert found == [float(one.advance()[0].loss) for one in alone]
    gang.close()


# Whose turn it is


class Updates:
    """Segments are names; some of them wait for the host."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: set[str] = set()
        self.has_failed = False

    def is_done(self, segment: str) -> bool:
        return segment not in self.waiting

    def done(self, *segments: str) -> None:
        with self.changed:
            self.waiting -= set(segments)
            self.changed.notify_all()


class Play:
    """Members that enter segments in threads of their own, watched for two that run at once."""

    def __init__(self, count: int, *, remaining: Sequence[int] = ()) -> None:
        self.updates = Updates()
        self.turnstile = Turnstile(self.updates, count)  # type: ignore[arg-type]
        self.turnstile.remaining = [lambda number=number: (remaining or [0] * count)[number] for number in range(count)]
        self.running: list[int] = []
        self.most_at_once = 0
        self._threads: list[threading.Thread] = []
        self.log: list[tuple[int, str]] = []

    def step(self, member: int, segments: Sequence[str], at: Callable[[str], None] = lambda segment: None) -> None:
        """One step in this thread."""
        self.turnstile.begin(member)
        try:
            self._computes(member, "begin", at)
            for segment in segments:
                self.turnstile.enter(member, segment, self._aside)  # type: ignore[arg-type]
                self._computes(member, segment, at)
        finally:
            self.turnstile.end(member)

    def start(self, member: int, segments: Sequence[str], at: Callable[[str], None] = lambda segment: None) -> None:
        """One step in a thread of its own."""
        thread = threading.Thread(target=self.step, args=(member, segments, at), daemon=True)
        self._threads.append(thread)
        thread.start()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        for _ in range(2000):
            with self.updates.changed:
                if holds():
                    return
            threading.Event().wait(0.001)
        raise AssertionError(f"it never came to that; so far {self.log}")

    def waits(self, member: int) -> bool:
        return member in self.turnstile._waiting

    def end(self) -> None:
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive(), f"a member waits for ever; so far {self.log}"
        assert self.most_at_once <= 1

    def _computes(self, member: int, segment: str, at: Callable[[str], None]) -> None:
        self.running.append(member)
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.log.append((member, segment))
        at(segment)
        self.running.remove(member)

    def _aside(self) -> Callable[[], None]:
        return lambda: None


@settings(max_examples=10, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=2, max_size=4),
    unready=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=5),
)
def test_one_runs_at_a_time_and_all_come_to_an_end(lengths: list[int], unready: set[tuple[int, int]]) -> None:
    play = Play(len(lengths), remaining=lengths)
    play.updates.waiting = {f"{member}.{number}" for member, number in unready}
    for member, length in enumerate(lengths):
        play.start(member, [f"{member}.{number}" for number in range(length)])
    for name in sorted(play.updates.waiting):
        play.updates.done(name)
    play.end()
    for member, length in enumerate(lengths):  # each in its own order
        mine = [segment for other, segment in play.log if other == member]
        assert mine == ["begin", *(f"{member}.{number}" for number in range(length))]


def test_the_longest_begins() -> None:
    play, gate = Play(3, remaining=[1, 9, 5]), threading.Event()
    play.start(0, [], lambda _: gate.wait(5) and None)
    play.wait_until(lambda: play.log == [(0, "begin")])
    for member in (1, 2):
        play.start(member, [])
    play.wait_until(lambda: play.waits(1) and play.waits(2))
    gate.set()
    play.end()
    assert play.log == [(0, "begin"), (1, "begin"), (2, "begin")]


def test_a_member_that_waits_for_the_host_lets_another_go() -> None:
    play = Play(2, remaining=[9, 1])
    play.updates.waiting = {"late"}
    play.start(0, ["early", "late", "last"])
    play.wait_until(lambda: play.waits(0))
    play.step(1, ["a", "b"])
    assert play.log == [(0, "begin"), (0, "early"), (1, "begin"), (1, "a"), (1, "b")]
    play.updates.done("late")
    play.end()
    assert play.log[5:] == [(0, "late"), (0, "last")]


def test_who_is_under_way_goes_on_before_another_begins() -> None:
    play = Play(3, remaining=[0, 5, 9])
    play.updates.waiting = {"late"}
    play.start(0, ["late", "last"])
    play.wait_until(lambda: play.waits(0))
    # While the second computes, the first becomes ready and the third, which has the longest way to go, arrives.

    def meanwhile(segment: str) -> None:
        if segment == "a":
            play.start(2, ["x"])
            play.wait_until(lambda: play.waits(2))
            play.updates.done("late")

    play.start(1, ["a", "b"], meanwhile)
    play.end()
    begun = play.log.index((2, "begin"))
    assert {(0, "last"), (1, "b")} <= set(play.log[:begun])
    assert play.log[play.log.index((1, "a")) + 1] == (0, "late")  # who began first goes first


def test_nobody_who_is_ready_is_passed_over_for_ever() -> None:
    play, length = Play(2, remaining=[99, 0]), 5 * PATIENCE * 2

    def meanwhile(segment: str) -> None:
        if segment == "begin":
            play.start(1, [])
            play.wait_until(lambda: play.waits(1))

    play.start(0, [str(number) for number in range(length)], meanwhile)
    play.end()
    assert play.log.index((1, "begin")) <= PATIENCE * 2 + 2
    assert play.log.index((1, "begin")) > PATIENCE  # it is patience, not taking turns


def test_a_member_that_fails_lets_the_others_go() -> None:
    play = Play(3)

    def fail(segment: str) -> None:
        play.start(1, ["a"])
        play.start(2, ["b"])
        play.wait_until(lambda: play.waits(1) and play.waits(2))
        play.running.clear()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        play.step(0, ["x"], fail)
    play.end()
    assert {(1, "a"), (2, "b")} <= set(play.log)


def test_after_a_failed_update_nobody_waits_for_it() -> None:
    play = Play(2)
    play.updates.waiting = {"never", "neither"}
    play.start(0, ["never"])
    play.start(1, ["neither"])
    play.wait_until(lambda: play.waits(0) and play.waits(1))
    with play.updates.changed:
        play.updates.has_failed = True
        play.updates.changed.notify_all()
    play.end()


def test_who_has_no_turn_may_enter_for_that_is_an_evaluation() -> None:
    play = Play(2)
    play.turnstile.enter(1, "a", play._aside)  # type: ignore[arg-type]
    assert not play.waits(1)


def test_random_numbers_are_put_aside_only_where_another_goes_first() -> None:
    play, asides = Play(2), []

    def aside() -> Callable[[], None]:
        asides.append("away")
        return lambda: asides.append("back")

    play.turnstile.begin(0)
    play.turnstile.enter(0, "a", aside)  # type: ignore[arg-type]
    assert asides == []
    play.updates.waiting = {"b"}
    thread = threading.Thread(target=play.turnstile.enter, args=(0, "b", aside), daemon=True)
    thread.start()
    play.wait_until(lambda: play.waits(0))
    assert asides == ["away"]
    play.step(1, [])
    play.updates.done("b")
    thread.join(5)
    assert asides == ["away", "back"]


# A gang


def wide(width: int, layers: int, **options: Any) -> Callable[[], Training]:
    return lambda: training(Tower(layers, width), width=width, **options)


def gang(builds: Sequence[Callable[[], Training]], **knobs: Any) -> InterleaveSession:
    members = [programs.fresh(build, seed=seed) for seed, build in enumerate(builds)]
    return INTERLEAVE.open(members, device=CPU, threads=1, knobs=knobs)


def least(builds: Sequence[Callable[[], Training]], **knobs: Any) -> tuple[InterleaveSession, int]:
    """In about the fewest bytes there are."""
    too_few, enough = 1 << 12, 1 << 17
    while enough - too_few > enough // 32:
        middle = (too_few + enough) // 2
        try:
            gang(builds, device_bytes=middle, **knobs).close()
            enough = middle
        except TechniqueRefused:
            too_few = middle
    return gang(builds, device_bytes=enough, **knobs), enough


def on_device(session: InterleaveSession) -> int:
    return session._resources.arena_bytes + sum(each.kept_bytes for each in session._members)


@pytest.mark.parametrize(("count", "depth"), [(2, 1), (3, 3), (5, 1)])
def test_the_budget_is_the_whole_gangs(count: int, depth: int) -> None:
    session, device_bytes = least([wide(8, 9)] * count, depth=depth)
    for _ in range(2):
        session.advance(range(count))
    session.drain()
    assert on_device(session) <= device_bytes
    session.close()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("sizes", [[(8, 10), (32, 10)], [(32, 9), (8, 3)], [(8, 4), (16, 9), (32, 9)]])
def test_the_budget_holds_for_unlike_sizes(sizes: list[tuple[int, int]], depth: int) -> None:
    session, device_bytes = least([wide(*size) for size in sizes], depth=depth)
    session.advance(range(len(sizes)))
    session.drain()
    assert on_device(session) <= device_bytes
    session.close()


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_unlike_sizes_train_as_they_would_alone(clip_norm: float | None) -> None:
    builds = [wide(8, 10, clip_norm=clip_norm), wide(32, 3, clip_norm=clip_norm), wide(16, 1, clip_norm=clip_norm)]
    session, _ = least(builds, depth=2)
    assert any(not segment.kept for each in session._members for segment in each.segments)
    alone = [
        RESIDENT.open([programs.fresh(build, seed=seed)], device=CPU, threads=1) for seed, build in enumerate(builds)
    ]
    for _ in range(4):
        found = [float(report.loss) for report in session.advance(range(3))]
        assert found == [float(one.advance()[0].loss) for one in alone]
    # Some may rest while others go on.
    assert float(session.advance((1,))[0].loss) == float(alone[1].advance()[0].loss)
    assert [float(r.loss) for r in session.advance((0, 2))] == [float(alone[n].advance()[0].loss) for n in (0, 2)]
    session.close()


def test_what_does_not_fit_in_equal_shares_is_refused_with_numbers() -> None:
    before = set(threading.enumerate())
    with pytest.raises(TechniqueRefused, match=r"needs at least .* on the device .* the budget is 2.0 KiB"):
        gang([wide(8, 3), wide(32, 9)], device_bytes=4000)
    assert set(threading.enumerate()) == before


def host_bytes(build: Callable[[], Training]) -> int:
    """What one member takes of the host, the process included."""
    with pytest.raises(DoesNotFit) as error:
        SPILL.open(
            [programs.fresh(build)], device=CPU, threads=1, knobs={"device_bytes": 4500, "host_bytes": 1, "depth": 1}
        )
    return error.value.needed_bytes


def test_the_hosts_memory_is_the_whole_gangs() -> None:
    build = wide(8, 9)
    needed = (host_bytes(build) - CUDA_HOST_BYTES) * 2 + CUDA_HOST_BYTES
    session = gang([build] * 2, device_bytes=9000, host_bytes=needed, depth=1)
    assert session.forecast().host_bytes <= needed
    session.close()
    with pytest.raises(TechniqueRefused, match="of host memory"):
        gang([build] * 2, device_bytes=9000, host_bytes=needed - 2, depth=1)


def test_what_the_host_has_is_shared_where_no_budget_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    build = wide(8, 9)
    free = host_bytes(build) + 100  # enough for one
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=free))
    with pytest.raises(TechniqueRefused, match="of host memory"):
        gang([build] * 2, device_bytes=9000, depth=1)


@pytest.mark.parametrize("size", [0, 1])
def test_fewer_than_two_are_refused(size: int) -> None:
    members = [programs.fresh("tied") for _ in range(size)]
    assert INTERLEAVE.refuse(members) == f"interleave trains two tasks or more, got {size}"
    with pytest.raises(TechniqueRefused, match="two tasks or more"):
        INTERLEAVE.open(members, device=CPU, threads=1)


def test_two_tasks_with_one_model_are_refused() -> None:
    member = programs.fresh("tied")
    found = INTERLEAVE.refuse([member, SessionMember(training=member.training, seed=1)])
    assert found is not None
    assert "tasks must have models of their own" in found


def test_two_models_with_one_part_are_refused() -> None:
    shared = nn.Linear(8, 8)
    models = [nn.Sequential(shared, nn.Linear(8, 1)) for _ in range(2)]
    found = INTERLEAVE.refuse([SessionMember(training=training(model)) for model in models])
    assert found is not None


def test_what_spill_refuses_of_any_member_is_refused() -> None:
    members = [programs.fresh("tied"), programs.fresh("adversarial")]
    alone, together = SPILL.refuse(members[1:]), INTERLEAVE.refuse(members)
    assert alone is not None
    assert together is not None
    assert alone in together


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"must be among .* got \['patience'\]"):
        gang([wide(8, 3)] * 2, patience=1)


# Failures


@pytest.mark.timeout(60)
@pytest.mark.parametrize("who", [0, 1])
def test_a_member_whose_program_fails_holds_up_nobody(who: int) -> None:
    before = set(threading.enumerate())
    CALLS[:] = [0, 0]

    def loss(member: int) -> Callable[[nn.Module, Any], torch.Tensor]:
        def found(model: nn.Module, batch: Any) -> torch.Tensor:
            CALLS[member] += 1
            if member == who and CALLS[member] == 2:
                raise ValueError("mine")
            return squared(model, batch)

        return found

    session = gang([wide(8, 6, loss=loss(member)) for member in range(2)], device_bytes=9000, depth=1)
    session.advance((0, 1))
    with pytest.raises(TrainingError, match="raised ValueError: mine") as error:
        session.advance((0, 1))
    assert getattr(error.value, "member", who) == who
    assert CALLS == [2, 2]  # the other took its step
    session.close()
    session.close()
    assert set(threading.enumerate()) == before


class Broken(torch.optim.SGD):
    """Fails on the host's thread, from the second update on."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("broken")


@pytest.mark.timeout(60)
def test_an_update_that_fails_is_met_and_holds_up_nobody() -> None:
    before = set(threading.enumerate())
    session = gang([wide(8, 6), wide(8, 6, optimizer=Broken)], device_bytes=9000, depth=1)
    with pytest.raises((TrainingError, ValueError), match="broken"):
        _advance_until_it_fails(session)
    session.close()
    assert set(threading.enumerate()) == before


def _advance_until_it_fails(session: InterleaveSession) -> None:
    for _ in range(3):
        session.advance((0, 1))
        session.drain()


class Failing(Tower):
    """Runs out of memory so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(6)
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.times > 0:
            self.times -= 1
            raise torch.OutOfMemoryError("not enough")
        return super().forward(x)


@pytest.mark.timeout(60)
def test_a_member_that_runs_out_of_memory_takes_its_first_step_again() -> None:
    def losses(times: int) -> list[list[float]]:
        session = gang([lambda: training(Failing(times)), wide(8, 6)], device_bytes=1 << 20, depth=1)
        try:
            return [[float(report.loss) for report in session.advance((0, 1))] for _ in range(3)]
        finally:
            session.close()

    assert losses(1) == losses(0)


@pytest.mark.timeout(60)
def test_a_member_that_never_fits_passes_its_error() -> None:
    before = set(threading.enumerate())
    session = gang([wide(8, 6), lambda: training(Failing(1000))], device_bytes=1 << 20, depth=1)
    with pytest.raises(torch.OutOfMemoryError, match="not enough") as error:
        session.advance((0, 1))
    assert getattr(error.value, "member", 1) == 1
    session.close()
    assert set(threading.enumerate()) == before


def test_closing_gives_all_models_back() -> None:
    before = set(threading.enumerate())
    session = gang([wide(8, 6), wide(8, 3)], device_bytes=9000, depth=1)
    models = [each._training.model for each in session._members]
    session.advance((0, 1))
    states = [{name: t.clone() for name, t in session.state(number).tensors.items()} for number in range(2)]
    session.close()
    session.close()
    for model, state in zip(models, states, strict=True):
        assert not any("forward" in vars(module) for module in model.modules())
        assert all(torch.equal(parameter, state[f"model/{name}"]) for name, parameter in model.named_parameters())
    assert set(threading.enumerate()) == before
