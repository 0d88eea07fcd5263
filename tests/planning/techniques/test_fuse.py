"""What fused gangs are predicted to take."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning.options import Trial, derive_options, trials
from dovetail.planning.techniques import fuse
from dovetail.vocabulary import Cluster, Kind, Profile

H200 = Kind(name="h200", processor="cuda", memory_bytes=100 << 30, memory_bytes_per_second=4e12)
CLUSTER = Cluster.uniform(H200, memory_bytes=256 << 30, cores=16)
ALONE = Profile(
    family="f",
    kind="h200",
    count=1,
    step_seconds=0.0016,
    peak_bytes=3 << 30,
    parameter_bytes=3 << 20,
    optimizer_bytes=6 << 20,
)
GANG = dataclasses.replace(
    ALONE, technique="fuse", step_seconds=0.0016, peak_bytes=6 << 30, knobs={"members": 4, "compile": "graph"}
)


@given(st.integers(2, 64))
def test_a_larger_gang_takes_longer_and_more_but_less_than_its_members_alone(members: int) -> None:
    found = fuse.predict(GANG, alone=ALONE, kind=H200, members=members)
    more = fuse.predict(GANG, alone=ALONE, kind=H200, members=members + 1)
    assert found.families == ("f",) * members
    assert found.step_seconds[0] < more.step_seconds[0]
    assert found.step_seconds[0] < members * ALONE.step_seconds
    assert found.device_bytes + (1 << 30) == more.device_bytes


def test_a_base_that_all_share_is_counted_once() -> None:
    # Two of three GiB alone are the base's: a gang of four takes six, and one of eight ten.
    assert fuse.predict(GANG, alone=ALONE, kind=H200, members=8).device_bytes == 10 << 30


def test_gangs_are_offered_of_families_of_which_one_was_measured() -> None:
    found, _ = derive_options([ALONE, GANG], CLUSTER, gangs=True)
    sizes = {len(option.families): option for option in found if option.technique == "fuse"}
    assert sizes.keys() == {2, 4, 8, 16, 32, 64}
    assert [size for size, option in sizes.items() if option.measured] == [4]
    assert all(option.knobs == {"compile": "graph"} for option in sizes.values())
    for without in (derive_options([ALONE, GANG], CLUSTER), derive_options([ALONE], CLUSTER, gangs=True)):
        assert all(option.technique == "resident" for option in without[0])


def test_one_gang_of_a_family_is_tried_once_one_task_was_measured() -> None:
    trial = Trial(family="f", technique="fuse", kind="h200", count=1)
    assert trial not in trials(["f"], [], CLUSTER, fused=["f"])
    assert trials(["f"], [ALONE], CLUSTER, fused=["f"]) == (trial,)
    assert trials(["f"], [ALONE], CLUSTER) == ()
    assert trials(["f"], [ALONE, GANG], CLUSTER, fused=["f"]) == ()
    assert trials(["f"], [ALONE], CLUSTER, fused=["f"], failed=[trial]) == ()


def test_a_long_step_on_a_cpu_is_not_tried_fused() -> None:
    cpu = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    short, long = (
        Profile(family="f", kind="cpu", count=1, step_seconds=seconds, peak_bytes=1 << 20) for seconds in (1e-3, 1.0)
    )
    assert [trial.technique for trial in trials(["f"], [short], cpu, fused=["f"])] == ["fuse"]
    assert trials(["f"], [long], cpu, fused=["f"]) == ()


def test_a_smaller_gang_than_the_measured_is_not_taken_for_a_bargain() -> None:
    # Four take 18 ms where one alone takes 4.9: what two take is between half of that and all, and is not known.
    cpu = Kind(name="cpu", processor="cpu")
    alone = Profile(family="f", kind="cpu", count=1, step_seconds=0.0049, peak_bytes=1 << 20, parameter_bytes=1 << 18)
    four = dataclasses.replace(alone, technique="fuse", step_seconds=0.018, knobs={"members": 4})
    two = fuse.predict(four, alone=alone, kind=cpu, members=2)
    assert 2 * alone.step_seconds < two.step_seconds[0] < four.step_seconds
    found, _ = derive_options([alone, four], Cluster.uniform(cpu, cores=2), gangs=True)
    assert {len(option.families) for option in found if option.technique == "fuse"} == {4, 8, 16, 32, 64}
