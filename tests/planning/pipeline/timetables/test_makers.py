"""Every timetable can be followed, does all its work, and has the bubble that closed forms say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.planning.pipeline.timetables import (
    TIMETABLES,
    Durations,
    Timetable,
    check,
    simulate,
    versions_kept,
)
from dovetail.planning.pipeline.timetables.makers import warm_ups
from dovetail.testing.timetables import bubble_share
from dovetail.vocabulary import InvalidRecord, dumps, loads

DEPTHS = range(2, 17)
REPLICABLE = ("gpipe", "1f1b", "stashing", "vertical_sync")


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble"])
def test_the_bubble_is_what_the_closed_form_says(name: str, depth: int) -> None:
    for microbatches in (depth, depth + 1, 2 * depth, 4 * depth):
        made = TIMETABLES[name]([1] * depth, microbatches=microbatches)
        found = simulate(made, Durations.equal(depth)).bubble_share
        assert found == pytest.approx(bubble_share(name, depth=depth, microbatches=microbatches))


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_chunks_divide_the_bubble(depth: int, chunks: int) -> None:
    for microbatches in (depth, 2 * depth):
        made = TIMETABLES["interleaved"]([1] * depth, microbatches=microbatches, chunks=chunks)
        found = simulate(made, Durations.equal(depth * chunks)).bubble_share
        assert found == pytest.approx(
            bubble_share("interleaved", depth=depth, microbatches=microbatches, chunks=chunks)
        )


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", ["stashing", "vertical_sync", "2bw"])
def test_without_a_flush_there_is_no_bubble(name: str, depth: int) -> None:
    def make(count: int) -> object:
        if name == "2bw":
            return TIMETABLES[name]([1] * depth, microbatches=depth, steps=count // depth)
        return TIMETABLES[name]([1] * depth, microbatches=count)

    short, long = (simulate(make(count), Durations.equal(depth)).seconds for count in (2 * depth, 4 * depth))
    assert (long - short) / (2 * depth) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("name", "ratio"), [("1f1b", 1.0), ("1f1b", 3.5), ("gpipe", 3.5), ("zero_bubble", 1.0), ("zero_bubble", 1.5)]
)
def test_closed_forms_hold_whatever_backward_takes(name: str, ratio: float) -> None:
    made = simulate(TIMETABLES[name]([1] * 5, microbatches=9), Durations.equal(5, backward=ratio))
    assert made.bubble_share == pytest.approx(bubble_share(name, depth=5, microbatches=9, ratio=ratio))


@pytest.mark.parametrize("asked", [{"microbatches": 4}, {"microbatches": 8, "ratio": 3.0}])
def test_there_is_no_closed_form_outside_its_conditions(asked: dict[str, float]) -> None:
    with pytest.raises(InvalidRecord, match="no closed form"):
        bubble_share("zero_bubble", depth=5, **asked)


def test_figures_of_the_literature() -> None:
    """Of p = 8 and m = 16, of makespan."""
    found = {name: bubble_share(name, depth=8, microbatches=16) for name in ("1f1b", "zero_bubble")}
    found |= {v: bubble_share("interleaved", depth=8, microbatches=16, chunks=v) for v in (2, 4)}
    assert {key: round(value, 3) for key, value in found.items()} == {
        "1f1b": 0.304,
        "zero_bubble": 0.127,
        2: 0.179,
        4: 0.099,
    }


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(REPLICABLE),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.integers(0, 12),
    st.integers(0, 2),
)
def test_replicas_of_any_number_can_be_followed(name: str, replicas: list[int], more: int, spare: int) -> None:
    knobs = {} if name == "gpipe" else {"spare": spare}
    made = TIMETABLES[name](replicas, microbatches=max(replicas) + more, **knobs)
    check(made)
    for rank, actions in enumerate(made.ranks):
        own = [action for action in actions if action.operation == "forward"]
        assert all(made.rank(action.stage, action.microbatch) == rank for action in own)
    held = simulate(made, Durations.equal(made.depth)).held
    if name != "gpipe" and max(replicas) == 1:
        assert all(count <= warm + 1 for count, warm in zip(held, warm_ups(replicas), strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 4))
def test_2bw_needs_two_versions_and_follows_its_recurrence(replicas: list[int], more: int, steps: int) -> None:
    microbatches = 6 * more
    made = TIMETABLES["2bw"](replicas, microbatches=microbatches, steps=steps)
    check(made)
    assert max(versions_kept(made)) <= 2
    for _, _, action in made.actions():
        if action.operation in ("forward", "backward"):
            step = action.microbatch // microbatches
            assert action.version == max(step - 1, 0)  # w(t+1) = w(t) − ν∇f(w(t−1))
    for actions in made.ranks:
        assert [a.microbatch for a in actions if a.operation == "update"] == list(range(steps))


@pytest.mark.parametrize("depth", [1, 2, 4, 7])
def test_stashing_keeps_a_version_for_each_microbatch_in_flight(depth: int) -> None:
    made = TIMETABLES["stashing"]([1] * depth, microbatches=3 * depth)
    assert versions_kept(made) == tuple(range(depth, 0, -1))
    synced = TIMETABLES["vertical_sync"]([1] * depth, microbatches=3 * depth)
    assert max(versions_kept(synced)) == depth
    first = {a.microbatch: a.version for a in synced.ranks[0] if a.operation == "forward"}
    assert all(a.version == first[a.microbatch] for _, _, a in synced.actions() if a.operation != "update")


def test_a_played_order_keeps_unlike_replicas_busy() -> None:
    replicas = [2, 3, 1]
    durations = Durations(forward=(2.0, 3.0, 1.0), backward=(4.0, 6.0, 2.0))
    assert simulate(TIMETABLES["1f1b"](replicas, microbatches=120), durations).bubble_share < 0.06
    assert simulate(TIMETABLES["stashing"](replicas, microbatches=120), durations).bubble_share < 0.08


def test_zero_bubble_holds_no_more_than_1f1b_at_its_first_rank() -> None:
    made = simulate(TIMETABLES["zero_bubble"]([1] * 6, microbatches=20), Durations.equal(6))
    assert made.held == (6,) * 6


@pytest.mark.parametrize(
    ("name", "replicas", "knobs", "words"),
    [
        ("1f1b", [], {"microbatches": 4}, "at least one rank"),
        ("1f1b", [1, 0], {"microbatches": 4}, "at least one rank"),
        ("1f1b", [3, 1], {"microbatches": 2}, "at least 3, got 2"),
        ("zero_bubble", [2, 1], {"microbatches": 4}, "use '1f1b'"),
        ("interleaved", [1, 1], {"microbatches": 3}, "multiple of its 2 ranks"),
        ("2bw", [1, 1, 1], {"microbatches": 2}, "got 2 for 3 stages"),
        ("2bw", [2, 1], {"microbatches": 3}, "multiple of every stage's replicas"),
    ],
)
def test_what_cannot_be_is_refused(name: str, replicas: list[int], knobs: dict[str, int], words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        TIMETABLES[name](replicas, **knobs)


@pytest.mark.parametrize("name", sorted(TIMETABLES))
def test_a_timetable_goes_to_json_and_comes_back(name: str) -> None:
    made = TIMETABLES[name]([1, 1], microbatches=4)
    assert loads(Timetable, dumps(made)) == made
