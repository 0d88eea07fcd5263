"""What replayed steps, alone and beside each other, are predicted to take, and when they are tried."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning import Trial, derive_options, trials
from dovetail.planning.techniques import beside
from dovetail.vocabulary import Cluster, Kind, Option, Profile

H200 = Kind(name="h200", processor="cuda", memory_bytes=20 << 30)
CLUSTER = Cluster.uniform(H200, memory_bytes=256 << 30, cores=16)
RESIDENT = Profile(family="f", kind="h200", count=1, step_seconds=0.02, peak_bytes=2 << 30)
GRAPH = dataclasses.replace(RESIDENT, technique="graph", step_seconds=0.003, peak_bytes=3 << 30)
FOUR = dataclasses.replace(GRAPH, technique="beside", step_seconds=0.008, peak_bytes=6 << 30, knobs={"members": 4})
OTHER = [dataclasses.replace(each, family="g") for each in (RESIDENT, GRAPH, FOUR)]
SLOW = [
    dataclasses.replace(each, family="s", step_seconds=seconds)
    for each, seconds in ((RESIDENT, 0.05), (GRAPH, 0.02), (FOUR, 0.04))
]


def techniques_tried(known: list[Profile], members: dict[str, int], cluster: Cluster = CLUSTER) -> list[Trial]:
    return [each for each in trials(["f"], known, cluster, members=members) if each.technique in ("graph", "beside")]


def test_a_graph_is_tried_on_accelerators_where_a_task_fits_and_then_a_gang_of_them() -> None:
    graph = Trial(family="f", technique="graph", kind="h200", count=1)
    assert techniques_tried([], {"f": 1}) == []
    assert techniques_tried([RESIDENT], {"f": 1}) == [graph]
    assert techniques_tried([RESIDENT, GRAPH], {"f": 1}) == [], "there is nobody to be beside"
    (gang,) = techniques_tried([RESIDENT, GRAPH], {"f": 1, "g": 1})
    assert (gang.technique, gang.members) == ("beside", 2)
    (gang,) = techniques_tried([RESIDENT, GRAPH], {"f": 9})
    assert gang.members == 4
    divided = dataclasses.replace(RESIDENT, knobs={"microbatches": 2})
    assert techniques_tried([divided], {"f": 1}) == [], "it was too large with whole batches"
    cpu = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    assert techniques_tried([dataclasses.replace(RESIDENT, kind="cpu")], {"f": 1}, cpu) == []


@given(st.integers(2, 8))
def test_shares_add_up_and_nobody_is_faster_than_alone(members: int) -> None:
    found = beside.predict([beside.GangPart.of(FOUR, GRAPH)] * members, kind=H200)
    assert found.step_seconds == (pytest.approx(max(0.003, 0.002 * members)),) * members
    assert found.device_bytes == (2 + members) << 30


def offered(members: dict[str, int], *known: Profile) -> list[Option]:
    found, _ = derive_options(known, CLUSTER, members=members)
    return [option for option in found if option.technique == "beside"]


def test_gangs_are_offered_of_one_family_and_of_several() -> None:
    sizes = [len(option.families) for option in offered({"f": 6}, RESIDENT, GRAPH, FOUR)]
    assert sorted(sizes) == [2, 3, 4, 5, 6]
    pairs = offered({"f": 1, "g": 1}, RESIDENT, GRAPH, FOUR, *OTHER)
    assert [option.families for option in pairs] == [("f", "g")]
    three = offered({"f": 1, "g": 1, "s": 1}, RESIDENT, GRAPH, FOUR, *OTHER, *SLOW)
    assert ("f", "g", "s") in [option.families for option in three]
    (with_slow,) = [option for option in three if option.families == ("f", "s")]
    assert with_slow.step_seconds == (0.02, 0.02), "in step with the slowest"


def test_a_gang_that_takes_as_long_as_one_after_another_is_not_offered() -> None:
    useless = dataclasses.replace(FOUR, step_seconds=0.0125)
    assert [option for option in offered({"f": 6}, RESIDENT, GRAPH, useless) if not option.measured] == []


def test_what_does_not_fit_is_not_offered() -> None:
    large = dataclasses.replace(FOUR, peak_bytes=15 << 30)
    assert max(len(option.families) for option in offered({"f": 8}, RESIDENT, GRAPH, large)) == 5
