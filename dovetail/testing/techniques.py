"""What every technique must hold: training is one thing, however often it is stopped and whoever goes on with it.

```python
from dovetail.testing.techniques import TechniqueConformance

class TestMine(TechniqueConformance):
    technique = MINE
    tolerance = 1e-6     # leave it out where results are bit-equal
```
"""

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from dovetail.testing import programs
from dovetail.train import SessionMember, Technique, Training, TrainingSession, TrainingState, checkpoint
from dovetail.train.randomness import reseed
from dovetail.train.schedulers import steps_on_metrics
from dovetail.vocabulary import TechniqueRefused

STEPS = 6
_WHOLE: dict[tuple[type, str], tuple[list[TrainingState], list[list[float]]]] = {}


class TechniqueConformance:
    """Laws of a technique. A subclass sets `technique`, and `tolerance` where it promises less than equal bits.

    `gang` makes the members of a session from a program's name; override it for a technique that trains several
    at once. Programs that the technique refuses are skipped with its reason.
    """

    technique: Technique
    tolerance: float = 0.0
    threads: int = 1
    device: torch.device = torch.device("cpu")
    stops: Sequence[int] = range(STEPS)
    _size: int = 1
    _observes: bool = False

    def gang(self, program: str) -> list[SessionMember]:
        """The members of one session, freshly built."""
        return [self.fresh(program)]

    def fresh(self, program: str) -> SessionMember:
        """One newly built program by name."""
        return programs.fresh(program)

    # The laws

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_stopping_at_any_step_changes_nothing(self, program: str, tmp_path: Path) -> None:
        whole, losses = self._run_whole(program)
        session, found = self._open(program), []
        for step in range(max(self.stops) + 1):
            found += self._advance(session) if step else []
            if step in self.stops:
                _save(program, self._states(session), tmp_path / str(step))
        self._assert_losses(found, losses[: len(found)])  # being saved changes nothing either
        for stop in self.stops:
            after, rest = self._run(self._resume(program, tmp_path / str(stop)), STEPS - stop)
            self._assert_losses(rest, losses[stop:])
            self._assert_states(after, whole)

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_stopping_after_every_step_changes_nothing(self, program: str, tmp_path: Path) -> None:
        whole, losses = self._run_whole(program)
        states, found = self._run(self._open(program), 1)
        for step in range(1, STEPS):
            _save(program, states, tmp_path / str(step))
            states, more = self._run(self._resume(program, tmp_path / str(step)), 1)
            found += more
        self._assert_losses(found, losses)
        self._assert_states(states, whole)

    @pytest.mark.parametrize("program", programs.PLAIN)
    def test_a_plain_loop_gives_the_same(self, program: str) -> None:
        members = self._admit(program)
        losses = [_plain_loop(member.training, STEPS) for member in self.gang(program)]
        _, found = self._run(self._session(members), STEPS)
        self._assert_losses(found, [list(row) for row in zip(*losses, strict=True)])

    def test_activation_checkpointing_changes_nothing(self) -> None:
        self._admit("recompute")
        ones = [self.fresh("recompute"), self.fresh("shared")]  # the same model, but for what is computed again
        if self.technique.refuse(ones[:1]):
            pytest.skip("trains gangs only")
        (again, losses), (once, expected) = (self._run(self._session([one]), STEPS) for one in ones)
        self._assert_losses(losses, expected)
        self._assert_states(again, once)

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_what_happened_before_changes_no_draw(self, program: str) -> None:
        whole, losses = self._run_whole(program)
        session, found = self._open(program), []
        for step in range(STEPS):
            _draw_from_everything(step)
            found += self._advance(session)
        self._assert_losses(found, losses)
        self._assert_states(self._states(session), whole)

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_evaluating_changes_nothing(self, program: str) -> None:
        whole, losses = self._run_whole(program)
        members = self._admit(program)
        session, found = self._session(members), []
        for _ in range(STEPS):
            first = [session.evaluate(member) for member in range(len(members))]
            assert [session.evaluate(member) for member in range(len(members))] == first
            found += self._advance(session)
        self._assert_losses(found, losses)
        self._assert_states(self._states(session), whole)

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_every_trainable_parameter_moves_and_no_other(self, program: str) -> None:
        session = self._open(program)
        before = _clone(self._states(session))
        after, _ = self._run(session, STEPS)
        for one, other, member in zip(before, after, self.gang(program), strict=True):
            for name, parameter in member.training.model.named_parameters():
                same = torch.equal(one.tensors[f"model/{name}"], other.tensors[f"model/{name}"])
                assert same != parameter.requires_grad, name

    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_a_state_can_be_loaded_twice(self, program: str) -> None:
        saved = _clone(self._run(self._open(program), 2)[0])
        untouched = _clone(saved)
        ends = []
        for _ in range(2):
            session = self._open(program)
            for number, state in enumerate(saved):
                session.load(state, number)
            ends.append(_clone(self._run(session, 2)[0]))
        self._assert_states(saved, untouched)
        self._assert_states(ends[0], ends[1])

    @pytest.mark.parametrize("size", [0, 1, 2, 3])
    @pytest.mark.parametrize("program", sorted(programs.PROGRAMS))
    def test_it_opens_what_it_does_not_refuse(self, program: str, size: int) -> None:
        members = [self.fresh(program) for _ in range(size)]
        reason = self.technique.refuse(members)
        if reason is None:
            self._session(members).close()
            return
        assert reason.strip()
        with pytest.raises(TechniqueRefused) as refusal:
            self._session(members)
        assert reason in str(refusal.value)

    def test_a_session_advances_only_live_members(self) -> None:
        session = self._open("momentum")
        before = _clone(self._states(session))
        assert session.advance(()) == []
        self._assert_states(self._states(session), before)

    def test_closing_twice_is_fine(self) -> None:
        session = self._open("dropout")
        session.advance()
        session.close()
        session.close()

    def test_it_says_how_exact_it_is(self) -> None:
        assert self.technique.name
        assert self.technique.exactness

    # How they are looked at

    def _admit(self, program: str) -> list[SessionMember]:
        members = self.gang(program)
        self._observes = steps_on_metrics(members[0].training)
        self._size = len(members)  # once: building another gang to count it would seed every generator anew
        if reason := self.technique.refuse(members):
            pytest.skip(f"{self.technique.name} refuses {program!r}: {reason}")
        return members

    def _session(self, members: Sequence[SessionMember]) -> TrainingSession:
        return self.technique.open(members, device=self.device, threads=self.threads)

    def _open(self, program: str) -> TrainingSession:
        return self._session(self._admit(program))

    def _resume(self, program: str, folder: Path) -> TrainingSession:
        session = self._open(program)
        for number in range(self._size):
            found, _ = checkpoint.recover(folder / str(number))
            assert found is not None
            session.load(found, number)
        return session

    def _advance(self, session: TrainingSession) -> list[list[float]]:
        reports = session.advance(range(self._size))
        if self._observes:  # a number that rounding does not change, and that only gets worse
            for member, report in enumerate(reports):
                session.observe({"train/step": float(report.step)}, member)
        return [[float(report.loss) for report in reports]]

    def _states(self, session: TrainingSession) -> list[TrainingState]:
        return [session.state(member) for member in range(self._size)]

    def _run(self, session: TrainingSession, steps: int) -> tuple[list[TrainingState], list[list[float]]]:
        losses = [row for _ in range(steps) for row in self._advance(session)]
        return self._states(session), losses

    def _run_whole(self, program: str) -> tuple[list[TrainingState], list[list[float]]]:
        """A run in one go, made once for all laws that compare with it: it took half of their time."""
        key = type(self), program
        if key not in _WHOLE:
            states, losses = self._run(self._open(program), STEPS)
            _WHOLE[key] = _clone(states), losses
        return _WHOLE[key]

    def _assert_losses(self, found: list[list[float]], expected: list[list[float]]) -> None:
        if self.tolerance:
            assert found == [pytest.approx(row, rel=self.tolerance) for row in expected]
        else:
            assert found == expected

    def _assert_states(self, found: Sequence[TrainingState], expected: Sequence[TrainingState]) -> None:
        for one, other in zip(found, expected, strict=True):
            assert one.step == other.step
            assert one.tensors.keys() == other.tensors.keys()
            assert self.tolerance or json.dumps(one.values) == json.dumps(other.values)
            for name, tensor in one.tensors.items():
                expect = other.tensors[name]
                assert torch.allclose(tensor, expect, rtol=self.tolerance, atol=self.tolerance, equal_nan=True), name


def _save(program: str, states: Sequence[TrainingState], folder: Path) -> None:
    for number, state in enumerate(states):
        checkpoint.write(folder / str(number), state, task=program, attempt=1)


def _plain_loop(training: Training, steps: int) -> list[float]:
    """What a user would write without Dovetail."""
    assert isinstance(training.batches, list)
    assert training.loss is not None
    assert isinstance(training.optimizer, torch.optim.Optimizer)
    usable = len(training.batches) // training.accumulate * training.accumulate
    batches = itertools.cycle(training.batches[:usable])
    means = []
    for _ in range(steps):
        losses = [training.loss(training.model, next(batches)) for _ in range(training.accumulate)]
        for loss in losses:
            assert isinstance(loss, torch.Tensor)
            (loss / training.accumulate).backward()
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(training.model.parameters(), training.clip_norm)
        training.optimizer.step()
        if training.schedule is not None:
            assert isinstance(training.schedule, torch.optim.lr_scheduler.LRScheduler)
            training.schedule.step()
        training.optimizer.zero_grad()
        means.append(float(torch.stack([torch.as_tensor(loss).detach() for loss in losses]).mean()))
    return means


def _draw_from_everything(count: int) -> None:
    # Python's and NumPy's generators are carried, so only another session or build may touch them in between.
    torch.rand(count + 1)
    torch.manual_seed(count)
    reseed("other", count)
    numpy.random.rand(count + 1)
    random.random()


def _clone(states: Sequence[TrainingState]) -> list[TrainingState]:
    return [
        TrainingState(
            step=state.step,
            tensors={name: tensor.clone() for name, tensor in state.tensors.items()},
            values=json.loads(json.dumps(state.values)),
        )
        for state in states
    ]
