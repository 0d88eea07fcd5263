"""What an order does, in this process: single tasks, gangs, trials, and who is told when something goes wrong."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.engines import MemberOrder, Order, trainer
from dovetail.engines.runner import run
from dovetail.engines.worker_context import WorkerContext
from dovetail.train import checkpoint, fuse
from dovetail.train.build import Builder
from dovetail.train.fuse import fuse_session
from dovetail.train.fuse.fusibility import examine
from dovetail.train.isolation import Isolation
from dovetail.vocabulary import Event, Kind, Program, Stop, Task

PROGRAMS = Path(__file__).with_name("programs.py")
TIGHT = {"device_bytes": 16_384, "depth": 2}


# It sets things for the whole process as it is imported.
DOUBLE = """
import os

import torch
from torch import nn

import dovetail as dt

torch.set_default_dtype(torch.float64)
os.environ["DOUBLE_SAYS"] = "1"


def telling() -> dt.Training:
    model = nn.Linear(2, 1)
    return dt.Training(
        model=model,
        batches=[torch.ones(4, 2)],
        loss=lambda model, batch: model(batch).mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        evaluate=lambda model: {"bits": torch.ones(1).element_size() * 8, "said": int(os.environ["DOUBLE_SAYS"])},
    )
"""


class Ground:
    """Runs orders and keeps what they report."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events: list[Event] = []
        self.stops_after = ""  # the kind of event after which it is told to stop
        self.builder = Builder(home=home, isolation=Isolation())
        self.waited: list[float] = []  # the seconds that steps waited for data, as they were told
        self.steps_left = -1  # after so many steps it is told to stop; never where negative

    def member(
        self,
        program: str,
        *,
        steps: int,
        file: Path = PROGRAMS,
        name: str = "",
        stop: dict[str, Any] | None = None,
        **parameters: Any,
    ) -> MemberOrder:
        task = Task(
            name=name or program,
            program=Program(reference=f"{file}:{program}"),
            parameters=parameters,
            stop=Stop(steps=steps, **(stop or {})),
        )
        return MemberOrder(task=task, attempt=1, until_step=steps, directory=str(self.home / (name or program)))

    def run(self, purpose: str, members: Sequence[MemberOrder], technique: str, **options: Any) -> None:
        order = Order(
            name="an order",
            purpose=purpose,
            members=tuple(members),
            devices=("n0:0",),
            technique=technique,
            family="f" if purpose == "measure" else "",
            **options,
        )
        run(
            order,
            WorkerContext(
                report=self.events.append,
                stop_reason=self.stop_reason,
                acknowledged_step=lambda task: 0,
                device=torch.device("cpu"),
                kind=Kind(name="cpu", processor="cpu"),
                threads=1,
                home=self.home,
                builder=self.builder,
                waited=self.waited.append,
            ),
        )

    def stop_reason(self) -> str | None:
        self.steps_left -= 1
        return "enough" if self.steps_left == -1 or self.stops_after in {e.kind for e in self.events} else None

    def of(self, member: MemberOrder, *kinds: str) -> list[Event]:
        return [e for e in self.events if e.task == member.task.identity and (not kinds or e.kind in kinds)]

    def ends(self, member: MemberOrder) -> list[str]:
        return [event.kind for event in self.of(member, "finished", "waiting", "stopped", "failed", "lost")]

    def saved(self, member: MemberOrder) -> dict[str, torch.Tensor]:
        state, damages = checkpoint.recover(Path(member.directory))
        assert state is not None
        assert not damages
        return dict(state.tensors)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_spilled_task_learns_what_a_resident_one_does(ground: Ground) -> None:
    resident, spilled = ground.member("tower", steps=7, name="one"), ground.member("tower", steps=7, name="two")
    ground.run("train", [resident], "resident")
    ground.run("train", [spilled], "spill", knobs=TIGHT)
    assert ground.ends(resident) == ground.ends(spilled) == ["finished"]
    assert same(ground.saved(resident), ground.saved(spilled))


def test_members_of_a_gang_end_where_each_is_to_end(ground: Ground) -> None:
    lengths = {"short": 4, "long": 9, "middle": 6}
    gang = [ground.member("tower", steps=n, name=name, seed=n) for name, n in lengths.items()]
    ground.run("train", gang, "interleave", knobs={**TIGHT, "device_bytes": 60_000})
    for member, (name, steps) in zip(gang, lengths.items(), strict=True):
        (end,) = ground.of(member, "finished")
        assert end.step == steps
        alone = ground.member("tower", steps=steps, name=f"{name} alone", seed=steps)
        ground.run("train", [alone], "resident")
        assert same(ground.saved(member), ground.saved(alone))


def test_a_gang_goes_on_from_its_checkpoints(ground: Ground) -> None:
    gang = [ground.member("tower", steps=3, name=name, seed=n) for n, name in enumerate(("one", "two"))]
    ground.run("train", gang, "interleave")
    further = [ground.member("tower", steps=6, name=name, seed=n) for n, name in enumerate(("one", "two"))]
    ground.run("train", further, "interleave")
    alone = ground.member("tower", steps=6, name="alone", seed=1)
    ground.run("train", [alone], "resident")
    assert same(ground.saved(further[1]), ground.saved(alone))


def test_a_stop_saves_every_member(ground: Ground) -> None:
    gang = [ground.member("tower", steps=50, name=name, seed=n) for n, name in enumerate(("one", "two"))]
    ground.stops_after = "saved"
    ground.run("train", gang, "interleave", save_every_steps=5)
    assert [ground.ends(member) for member in gang] == [["stopped"], ["stopped"]]
    assert all(ground.saved(member) for member in gang)


def test_saves_that_take_long_are_further_apart(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    write = checkpoint.write

    def slow_write(*given: Any, **named: Any) -> Any:
        now[0] += 1.0
        return write(*given, **named)

    def tick() -> float:
        now[0] += 0.1  # each time it is asked: a few times a step
        return now[0]

    monkeypatch.setattr(trainer.time, "monotonic", tick)
    monkeypatch.setattr(trainer.checkpoints, "write", slow_write)
    (member,) = [ground.member("tower", steps=400)]
    ground.run("train", [member], "resident", save_every_seconds=2.0)
    first, second, *_ = [event.step for event in ground.of(member, "saved")]
    assert first < 2.0 / 0.1
    assert second - first > 100  # a second's save is paid by fifty seconds of training


def test_a_member_that_diverges_leaves_the_others_alone(ground: Ground) -> None:
    gang = [ground.member("tower", steps=12), ground.member("diverging", steps=12, at=3)]
    ground.run("train", gang, "interleave", save_every_steps=2)
    assert [ground.ends(member) for member in gang] == [["finished"], ["failed"]]
    assert "finite" in ground.of(gang[1], "failed")[0].reason


def test_a_member_that_breaks_the_session_fails_and_the_others_are_lost(ground: Ground) -> None:
    gang = [ground.member("tower", steps=12), ground.member("fickle", steps=12)]
    ground.run("train", gang, "interleave")
    assert [ground.ends(member) for member in gang] == [["lost"], ["failed"]]
    assert "a word was missing" in ground.of(gang[1], "failed")[0].reason
    assert "'fickle'" in ground.of(gang[0], "lost")[0].reason


def test_a_member_that_cannot_be_built_fails_and_the_others_are_lost(ground: Ground) -> None:
    gang = [ground.member("tower", steps=12), ground.member("raising", steps=12)]
    ground.run("train", gang, "interleave")
    assert [ground.ends(member) for member in gang] == [["lost"], ["failed"]]


@pytest.mark.parametrize(
    ("program", "technique", "knobs", "reason"),
    [
        ("greedy", "resident", {}, "ran out of memory in its trial"),
        ("tower", "spill", {"device_bytes": 64}, "needs at least"),
        ("tower", "interleave", {}, "two tasks or more"),
    ],
)
def test_a_trial_that_does_not_fit_rejects_its_option_only(
    ground: Ground, program: str, technique: str, knobs: dict[str, int], reason: str
) -> None:
    member = ground.member(program, steps=5)
    ground.run("measure", [member], technique, knobs=knobs)
    *tried, event = ground.events
    assert [each.kind for each in tried] == ["warned"] * len(tried)  # each rung of the ladder, where there are any
    assert bool(tried) == (technique == "resident")
    assert event.kind == "rejected"
    found = event.rejection
    assert (found.families, found.technique, found.kind, found.count) == (("f",), technique, "cpu", 1)
    assert reason in found.reason
    assert (found.needed_bytes > 0) == (technique == "spill")


def test_a_spilled_trial_says_what_its_segments_take(ground: Ground) -> None:
    ground.run("measure", [ground.member("tower", steps=5)], "spill", knobs=TIGHT)
    (event,) = ground.events
    profile = event.profile
    assert (profile.technique, profile.clips, profile.precision) == ("spill", True, "fp32")
    assert dict(profile.knobs) == TIGHT
    assert profile.host_bytes > 0
    assert sum(layer.parameter_bytes for layer in profile.layers) == profile.parameter_bytes
    assert all(layer.forward_seconds > 0 and layer.backward_seconds > 0 for layer in profile.layers)


def test_no_task_finds_what_another_did_to_the_variables_of_its_module(ground: Ground) -> None:
    for name in ("one", "two"):
        member = ground.member("leaking", steps=2, name=name)
        ground.run("train", [member], "resident")
        (end,) = ground.of(member, "finished")
        assert dict(end.metrics) == {"tasks": 1, "rate": 0.02, "now": 1}


def test_what_a_file_sets_as_it_is_imported_holds_for_each_of_its_tasks_and_for_no_other(ground: Ground) -> None:
    double = ground.home / "double.py"
    double.write_text(DOUBLE)
    for name in ("one", "two"):
        member = ground.member("telling", file=double, steps=1, name=name)
        ground.run("train", [member], "resident")
        assert [dict(end.metrics) for end in ground.of(member, "finished")] == [{"bits": 64, "said": 1}]
        other = ground.member("leaking", steps=2, name=f"other than {name}")
        ground.run("train", [other], "resident")
        assert ground.ends(other) == ["finished"]
        assert (torch.get_default_dtype(), os.environ.get("DOUBLE_SAYS")) == (torch.float32, None)


def test_a_program_that_changes_its_module_is_refused_in_a_gang_by_the_names(ground: Ground) -> None:
    gang = [ground.member("leaking", steps=2, name=name, seed=n) for n, name in enumerate(("one", "two"))]
    ground.run("train", gang, "fuse")
    (end,) = ground.of(gang[0], "failed")
    assert end.cause == "refused"
    assert "programs" in end.reason
    assert "TASKS" in end.reason
    assert "Train it alone" in end.reason
    ground.run("measure", gang[:1], "fuse", knobs={"members": 2})
    (rejected,) = ground.of(gang[0], "rejected")
    assert "must leave its modules and torch's settings as they are" in rejected.rejection.reason


def test_a_gang_that_its_technique_refuses_says_which_and_is_asked_once(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        fuse_session, "examine", lambda members, **given: (asked.append(1), examine(members, **given))[1]
    )
    monkeypatch.setattr(fuse.Fuse, "refuse", lambda *given: asked.append(2))
    alike = [ground.member("tower", steps=2, name=name, seed=n) for n, name in enumerate(("one", "two"))]
    ground.run("train", alike, "fuse")
    assert [ground.ends(member) for member in alike] == [["finished"], ["finished"]]
    assert asked == [1]
    unlike = [ground.member("tower", steps=2, name=f"of {width}", width=width) for width in (8, 16)]
    ground.run("train", unlike, "fuse")
    (end,) = ground.of(unlike[0], "failed")
    assert end.cause == "refused"
    assert end.reason.startswith("task 'of 8': tasks must be one program; in task 1 against task 2,")
    assert ground.ends(unlike[1]) == ["lost"]


def test_a_task_with_a_target_says_at_each_evaluation_where_its_seconds_went(ground: Ground) -> None:
    target = {"metric": "train/loss", "at_most": -1.0}
    member = ground.member("tower", steps=6, name="racing", stop=target)
    ground.run("train", [member], "resident")
    readings = ground.of(member, "evaluated")
    assert [event.step for event in readings][-1] == 6
    for earlier, later in itertools.pairwise(readings):
        assert later.seconds["train"] > earlier.seconds["train"]
        assert later.seconds["evaluate"] > earlier.seconds["evaluate"]
        assert 0 < later.evaluation_seconds < sum(later.seconds.values())
    plain = ground.member("tower", steps=6, name="plain")
    ground.run("train", [plain], "resident")
    assert not ground.of(plain, "evaluated")


def test_a_task_with_a_target_that_is_stopped_says_where_its_seconds_went(ground: Ground) -> None:
    member = ground.member("tower", steps=9, name="racing", stop={"metric": "train/loss", "at_most": -1.0})
    ground.steps_left = 3
    ground.run("train", [member], "resident")
    (stopped,) = ground.of(member, "stopped")
    assert stopped.seconds["train"] > 0
    assert stopped.seconds["save"] > 0
