"""What evaluations decide: when patience ends, which checkpoint is the best, when a plateau lowers rates; and that a
stop at any step changes nothing of it."""

import dataclasses
from pathlib import Path

import pytest

from dovetail.store import folder_of
from dovetail.train import checkpoint
from dovetail.train.export import load_model
from tests.engines.test_runner import Ground, same

SCORES = [0.0, 0.1, 0.5, 0.4, 0.5, 0.6, 0.2, 0.3, 0.6, 0.1, 0.9, 1.0]  # by step
PATIENT = {"metric": "score", "patience": 3}


@pytest.fixture
def ground(tmp_path):
    return Ground(tmp_path)


def finished(ground, member):
    (end,) = ground.of(member, "finished")
    return end


def run_in_two(ground, member, *, stop):
    ground.steps_left = stop
    ground.run("train", [member], "resident")
    ground.steps_left = -1
    if ground.ends(member) == ["stopped"]:
        ground.run("train", [member], "resident")


def member_of(ground, name, **options):
    return ground.member("scripted", **{"steps": 11, "name": name, "scores": SCORES, **options})


def test_patience_counts_evaluations_without_a_better_value(ground):
    member = member_of(ground, "patient", stop=PATIENT)
    ground.run("train", [member], "resident")
    end = finished(ground, member)
    assert (end.step, end.reason) == (8, "score was not better than 0.6 at step 5 for 3 evaluations")


@pytest.mark.parametrize("stop", range(12))
def test_a_stop_at_any_step_changes_nothing(ground, stop):
    given = {"stop": PATIENT, "keep_best": "score", "plateau": True}
    whole, parts = member_of(ground, "whole", **given), member_of(ground, "parts", **given)
    ground.run("train", [whole], "resident")
    run_in_two(ground, parts, stop=stop)
    assert finished(ground, parts).step == finished(ground, whole).step == 8
    assert same(ground.saved(parts), ground.saved(whole))
    states = [checkpoint.recover(Path(member.directory))[0] for member in (whole, parts)]
    one, other = (state.values["progress"] | {"schedules": state.values["schedules"]} for state in states)
    assert {**one, "points": []} == {**other, "points": []}
    models = [load_model(member.task, folder_of(member.directory)) for member in (whole, parts)]
    assert [int(-model.rows[0].item()) for model in models] == [5, 5]


def test_a_plateau_lowers_the_rate_at_regular_evaluations_alone(ground):
    """The last step of a shorter training is evaluated too, which must not count where it goes on."""
    whole = member_of(ground, "whole", steps=9, every=2, plateau=True)
    ground.run("train", [whole], "resident")
    for steps in (7, 9):
        ground.run("train", [parts := member_of(ground, "parts", steps=steps, every=2, plateau=True)], "resident")
    assert same(ground.saved(parts), ground.saved(whole))
    still = member_of(ground, "still", steps=9, every=2)
    ground.run("train", [still], "resident")
    assert not same(ground.saved(still), ground.saved(whole))


def test_what_steps_wait_for_data_is_told_and_not_what_resuming_reads(ground):
    """Sleeping takes no less than it is told to, so that the seconds have a least value."""
    member = ground.member("hungry", steps=12, name="hungry")
    run_in_two(ground, member, stop=6)
    (stopped,), end = ground.of(member, "stopped"), finished(ground, member)
    assert 0 < stopped.data_share <= 1
    assert 0 < end.data_share <= 1
    assert sum(ground.waited) >= 12 * 0.01
    assert min(ground.waited) >= 0


def test_more_patience_goes_on_where_less_ended(ground):
    ground.run("train", [member_of(ground, "one", stop=PATIENT)], "resident")
    member = member_of(ground, "one", stop=PATIENT | {"patience": 5})
    ground.run("train", [member], "resident")
    assert ground.of(member, "finished")[-1].step == 11


def test_the_best_is_kept_beside_the_last_and_is_what_is_exported(ground):
    member = member_of(ground, "best", steps=9, keep_best="score")
    ground.run("train", [member], "resident", save_every_steps=1, keep_count=2)
    folder = folder_of(member.directory)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(folder)] == [9, 8, 5]
    assert int(-load_model(member.task, folder).rows[0].item()) == 5
    assert int(-load_model(member.task, folder, last=True).rows[0].item()) == 9


def test_a_best_checkpoint_that_cannot_be_read_gives_the_last_with_a_warning(ground):
    member = member_of(ground, "best", steps=9, keep_best="score")
    ground.run("train", [member], "resident")
    folder = Path(member.directory)
    (path,) = [each for each in checkpoint.complete(folder) if checkpoint.step_of(each) == 5]
    (path / "piece-00000.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"best checkpoint, of step 5 with score 0.6, cannot be read.*that of step 9"):
        assert int(-load_model(member.task, folder).rows[0].item()) == 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_best": "accuracy"}, "must report the metric 'accuracy' that Training.keep_best names"),
        ({"stop": {"metric": "accuracy", "patience": 2}}, "must report the target metric 'accuracy'"),
        ({"keep_best": "speed"}, "whether more of 'speed' is better; its name does not say. Give goal="),
    ],
)
def test_what_evaluation_does_not_report_is_named(ground, options, message):
    member = member_of(ground, "unsaid", **options)
    ground.run("train", [member], "resident")
    (end,) = ground.of(member, "failed")
    assert message in end.reason


def test_an_evaluation_that_exits_ends_its_task_and_not_the_worker(ground):
    member = ground.member("leaving", steps=4, name="leaving")
    ground.run("train", [member], "resident")
    (end,) = ground.of(member, "failed")
    assert "SystemExit: enough" in end.reason


@pytest.mark.parametrize("repeated", [False, True])
def test_evaluation_by_visits_decides_what_evaluation_in_one_place_does_and_counts_once(ground, repeated):
    """The last visit's save, and then its worker's end before that was said: it is made again."""
    places = [ground.home / name for name in ("left", "right")]
    for number, place in enumerate(places):
        place.write_text(str(number))
    given = {"places": [str(each) for each in places], "scores": SCORES, "steps": 8}
    given["stop"] = {"metric": "score", "patience": 2}
    whole, parts = (ground.member("sharded", name=name, **given) for name in ("whole", "parts"))
    ground.run("train", [whole], "resident")
    for until in (2, 4, 6, 8):
        for asked in ("", "left", "right", *(["right"] if repeated else [])):
            if ground.of(parts, "finished"):
                break
            done = {
                e.shard: e.sums for e in ground.of(parts, "shard_evaluated") if e.step == until and e.shard != asked
            }
            visit = {"until_step": until, "visits": True, "evaluates": asked, "evaluated": done}
            parts = dataclasses.replace(
                parts, final=until == 8 and asked == "right", attempt=parts.attempt + 1, **visit
            )
            ground.run("train", [parts], "hop")
    ends = [finished(ground, member) for member in (whole, parts)]
    assert {(end.step, end.reason) for end in ends} == {(6, ends[0].reason)}
    assert "for 2 evaluations" in ends[0].reason
    states = [checkpoint.recover(folder_of(member.directory))[0].values["progress"] for member in (whole, parts)]
    for name in ("patience", "metrics", "best"):
        assert states[0][name] == states[1][name]
    assert int(-load_model(parts.task, folder_of(parts.directory)).rows[0].item()) == states[0]["best"]["step"] == 2
    scored = [
        {
            (step, value)
            for event in ground.of(member, "progress")
            for name, step, value in event.points
            if name == "score"
        }
        for member in (whole, parts)
    ]
    assert scored[0] == scored[1] != set()


@pytest.mark.parametrize("asked", [[], ["left"], ["left", "right"]])
def test_an_evaluation_that_visits_began_is_made_where_training_goes_on_in_one_place(ground, asked):
    """Where a cluster has shrunk to one node that has all shards; and back, where it grew again."""
    places = [ground.home / name for name in ("left", "right")]
    for place in places:
        place.touch()
    given = {"places": [str(each) for each in places], "scores": SCORES, "steps": 7}
    given["stop"] = {"metric": "score", "patience": 4}
    whole, parts = (ground.member("sharded", name=name, **given) for name in ("whole", "parts"))
    ground.run("train", [whole], "resident")
    for shard in ("", *asked):
        done = {event.shard: event.sums for event in ground.of(parts, "shard_evaluated")}
        parts = dataclasses.replace(
            parts, until_step=2, final=False, visits=True, evaluates=shard, evaluated=done, attempt=parts.attempt + 1
        )
        ground.run("train", [parts], "hop")
    there = dataclasses.replace(
        parts, until_step=6, visits=False, evaluates="", evaluated={}, attempt=parts.attempt + 1
    )
    ground.run("train", [there], "resident")
    for shard, done in (("left", {}), ("right", {"left": {"score": (9.0, 1)}})):  # known already, and never counted
        visit = {"until_step": 6, "visits": True, "evaluates": shard, "evaluated": done}
        there = dataclasses.replace(there, attempt=there.attempt + 1, **visit)
        ground.run("train", [there], "hop")
    last = dataclasses.replace(there, until_step=7, final=True, visits=False, evaluates="", attempt=there.attempt + 1)
    ground.run("train", [last], "resident")
    states = [checkpoint.recover(folder_of(member.directory))[0].values["progress"] for member in (whole, parts)]
    for name in ("patience", "metrics", "best"):
        assert states[0][name] == states[1][name]
    assert states[1]["patience"]["waited"] == 2, "at steps 4 and 6, after the best at 2"


@pytest.mark.parametrize("every", [1, 100])
def test_a_visit_ends_saved_at_its_last_step_and_is_evaluated_only_where_training_would_be(ground, every):
    whole = member_of(ground, "whole", every=every)
    parts = member_of(ground, "parts", every=every)
    ground.run("train", [whole], "resident")
    for until in (4, 7, 11):
        visit = dataclasses.replace(parts, until_step=until, final=until == 11, visits=True)
        ground.run("train", [visit], "hop")
    assert [(end.step, end.reason) for end in ground.of(parts, "stopped")] == [
        (4, "its shard is read"),
        (7, "its shard is read"),
    ]
    assert finished(ground, parts).step == 11
    assert same(ground.saved(parts), ground.saved(whole))
    scored = [
        {step for event in ground.of(member, "progress") for name, step, _ in event.points if name == "score"}
        for member in (whole, parts)
    ]
    assert scored[0] == scored[1]
