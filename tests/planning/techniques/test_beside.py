"""What replayed steps, alone and beside each other, are predicted to take, and when they are tried."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning import Trial, derive_options, trials
from dovetail.planning.techniques import beside, fuse
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


SHARED = dataclasses.replace(H200, memory_bytes=40 << 30, mps=True)
SHARING = Cluster.uniform(SHARED, memory_bytes=256 << 30, cores=16)
BUSY = dataclasses.replace(GRAPH, busy_seconds=0.0025, build_seconds=1.0)


def offered_apart(members: dict[str, int], *known: Profile, cluster: Cluster = SHARING) -> list[Option]:
    found, _ = derive_options(known, cluster, members=members)
    return [option for option in found if option.technique == "beside"]


def test_processes_of_their_own_are_offered_untried_and_start_at_the_same_time() -> None:
    gangs = {len(each.families): each for each in offered_apart({"f": 9}, RESIDENT, BUSY)}
    assert sorted(gangs) == [2, 3, 4, 5, 6], "a process each, of which there are not many"
    four = gangs[4]
    assert four.step_seconds == (pytest.approx(4 * 0.6 * 0.0025),) * 4
    assert (four.start_seconds, four.cores, four.measured) == (1.0, 4, False)
    assert four.device_bytes == 4 * (3 << 30) + 3 * (1 << 29), "with a context for each but the first"
    assert four.host_bytes == 4 * gangs[2].host_bytes // 2
    assert not offered_apart({"f": 9}, RESIDENT, BUSY, cluster=CLUSTER), "in one process it has to be tried"


def test_a_gang_that_was_measured_says_how_far_kernels_overlap() -> None:
    measured = dataclasses.replace(FOUR, busy_seconds=0.006)
    gangs = {len(each.families): each for each in offered_apart({"f": 6}, RESIDENT, BUSY, measured)}
    assert gangs[4].step_seconds == (0.006,) * 4
    assert gangs[4].measured
    assert gangs[5].step_seconds == (pytest.approx(5 * 0.006 / 4),) * 5


def test_what_is_offered_untried_can_be_found_only_somewhat_better() -> None:
    (four,) = (each for each in offered_apart({"f": 4}, RESIDENT, BUSY) if len(each.families) == 4)
    one = Option(families=("f",), technique="graph", kind="h200", count=1, step_seconds=(0.003,))
    for technique, share in (("beside", 0.8), ("fuse", 0.75)):
        trial = Trial(family="f", technique=technique, kind="h200", count=1, knobs={"members": 4})
        found = (beside if technique == "beside" else fuse).ideal(one, trial, [one, four])
        assert found.step_seconds == (pytest.approx(share * four.step_seconds[0]),) * 4
