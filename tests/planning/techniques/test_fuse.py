"""What fused gangs are predicted to take."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.planning import PLANNERS, Problem, Trial, derive_options, trials
from dovetail.planning.schedule.worth import worthwhile
from dovetail.planning.techniques import fuse
from dovetail.vocabulary import Cluster, Family, Kind, LayerProfile, Member, Profile, Rejection

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
GANG = dataclasses.replace(ALONE, technique="fuse", step_seconds=0.0016, peak_bytes=6 << 30, knobs={"members": 4})


@given(st.integers(4, 64))
def test_a_larger_gang_takes_longer_and_more_but_less_than_its_members_alone(members: int) -> None:
    found = fuse.predict([GANG], alone=ALONE, kind=H200, members=members)
    more = fuse.predict([GANG], alone=ALONE, kind=H200, members=members + 1)
    assert found.families == ("f",) * members
    assert found.step_seconds[0] < more.step_seconds[0]
    assert found.step_seconds[0] < members * ALONE.step_seconds
    assert found.device_bytes + (1 << 30) == more.device_bytes


def test_a_smaller_gang_is_no_slower_than_a_larger_one_and_no_faster_than_its_share() -> None:
    sixteen = dataclasses.replace(GANG, step_seconds=0.021, knobs={"members": 16})
    eager = dataclasses.replace(ALONE, step_seconds=0.017)  # mostly launches, which a gang shares
    for one_seconds in (None, 0.002):
        four = fuse.predict([sixteen], alone=eager, kind=H200, members=4, one_seconds=one_seconds)
        assert 0.021 * 4 / 16 <= four.step_seconds[0] <= 0.021
    assert four.step_seconds[0] == pytest.approx(0.002 + 3 * 0.019 / 15)


def test_what_is_compiled_is_compiled_once_for_the_gang() -> None:
    full = dataclasses.replace(GANG, build_seconds=0.5, compile_seconds=9.0, knobs={"members": 4, "compile": "full"})
    assert fuse.option(full, kind=H200).start_seconds == 4 * 0.5 + 9.0
    assert fuse.predict([full], alone=ALONE, kind=H200, members=16).start_seconds == 16 * 0.5 + 9.0


def test_a_base_that_all_share_is_counted_once() -> None:
    # Two of three GiB alone are the base's: a gang of four takes six, and one of eight ten.
    assert fuse.predict([GANG], alone=ALONE, kind=H200, members=8).device_bytes == 10 << 30


def test_gangs_are_offered_of_families_of_which_one_was_measured() -> None:
    found, _ = derive_options([ALONE, GANG], CLUSTER, members={"f": 64})
    sizes = {len(option.families): option for option in found if option.technique == "fuse"}
    assert sizes.keys() == {*range(2, 9), 16, 22, 32, 64}
    assert [size for size, option in sizes.items() if option.measured] == [4]
    assert all(option.knobs == {} for option in sizes.values())
    for without in (derive_options([ALONE, GANG], CLUSTER), derive_options([ALONE], CLUSTER, members={"f": 64})):
        assert all(option.technique == "resident" for option in without[0])
    found, _ = derive_options([ALONE, GANG], CLUSTER, members={"f": 6})
    assert {len(option.families) for option in found} == {1, 2, 3, 4, 5, 6}


# That steps cannot be replayed from a graph is known; before, no gang is tried on an accelerator.
REPLAYED = Trial(family="f", technique="graph", kind="h200", count=1)


def gang_trial(members: int, **knobs: object) -> Trial:
    return Trial(family="f", technique="fuse", kind="h200", count=1, knobs={"members": members, **knobs})


def test_one_gang_of_a_family_is_tried_once_one_task_was_measured() -> None:
    trial, compiled = gang_trial(4), gang_trial(4, compile="full")

    def wanted(known: list[Profile], members: int, *failed: Trial) -> tuple[Trial, ...]:
        return trials(["f"], known, CLUSTER, members={"f": members}, failed=[REPLAYED, *failed])

    assert trial not in wanted([], 4)
    assert wanted([ALONE], 16) == (gang_trial(16),)
    assert wanted([dataclasses.replace(ALONE, build_seconds=0.2)], 16) == (trial,)  # building more takes seconds
    assert wanted([dataclasses.replace(ALONE, peak_bytes=30 << 30)], 16) == (gang_trial(3),)  # more may not fit
    assert wanted([ALONE], 4) == (trial,)
    assert wanted([ALONE], 1) == ()
    assert wanted([ALONE, GANG], 4) == (compiled,)
    assert wanted([ALONE, GANG], 4, compiled) == ()
    assert wanted([ALONE], 2) == (gang_trial(2),)
    assert wanted([ALONE], 4, trial) == ()


def test_compiling_is_tried_where_the_steps_that_are_left_pay_for_it() -> None:
    def tried(layers: int, steps: int) -> bool:
        layer = LayerProfile(name="", operation="Linear", forward_seconds=1e-5, backward_seconds=2e-5)
        alone = dataclasses.replace(
            ALONE, step_seconds=0.077, layers=tuple(dataclasses.replace(layer, name=str(n)) for n in range(layers))
        )
        gang = dataclasses.replace(GANG, step_seconds=0.043, knobs={"members": 8})
        (compiled,) = trials(["f"], [alone, gang], CLUSTER, members={"f": 8}, failed=[REPLAYED])
        assert compiled == gang_trial(8, compile="full")
        offered, _ = derive_options([alone, gang], CLUSTER, members={"f": 8})
        members = tuple(Member(task=name, steps=steps) for name in "abcdefgh")
        problem = Problem(cluster=CLUSTER, families=(Family(name="f", members=members),), options=offered)
        return worthwhile([compiled], problem) == (compiled,)

    assert tried(5, 8_000)
    assert not tried(300, 8_000)  # a minute or two of compiling, twice, for two minutes won at best
    assert tried(300, 80_000)


def test_gangs_are_tried_once_it_is_known_what_replaying_takes() -> None:
    replayed = dataclasses.replace(ALONE, technique="graph", step_seconds=0.0004)
    assert trials(["f"], [ALONE], CLUSTER, members={"f": 4}) == (REPLAYED,)
    assert gang_trial(4) in trials(["f"], [ALONE, replayed], CLUSTER, members={"f": 4})
    forbidding = trials(["f"], [ALONE], CLUSTER, members={"f": 4}, may=lambda technique, knobs: technique != "graph")
    assert forbidding == (gang_trial(4),)


def test_a_long_step_on_a_cpu_is_not_tried_fused() -> None:
    cpu = Cluster.uniform(Kind(name="cpu", processor="cpu"))
    short, long = (
        Profile(family="f", kind="cpu", count=1, step_seconds=seconds, peak_bytes=1 << 20) for seconds in (1e-3, 1.0)
    )
    assert [trial.technique for trial in trials(["f"], [short], cpu, members={"f": 4})] == ["fuse"]
    assert trials(["f"], [long], cpu, members={"f": 4}) == ()


def test_on_a_cpu_the_first_gang_is_as_large_as_memory_and_building_allow() -> None:
    kind = Kind(name="cpu", processor="cpu")
    cpu = Cluster.uniform(kind, memory_bytes=100 << 20)
    alone = Profile(family="f", kind="cpu", count=1, step_seconds=1e-3, peak_bytes=1 << 20)

    def size(profile: Profile, members: int) -> int:
        (trial,) = trials(["f"], [profile], cpu, members={"f": members})
        return trial.members

    assert [size(alone, members) for members in (2, 11, 500)] == [2, 11, 64]
    assert size(dataclasses.replace(alone, peak_bytes=10 << 20), 11) == 8
    assert size(dataclasses.replace(alone, build_seconds=0.3), 11) == 3
    assert size(dataclasses.replace(alone, build_seconds=3.0), 11) == 4


def test_a_smaller_gang_than_the_measured_is_not_taken_for_a_bargain() -> None:
    # Four take 18 ms where one alone takes 4.9: what two take is between half of that and all, and is not known.
    cpu = Kind(name="cpu", processor="cpu")
    alone = Profile(family="f", kind="cpu", count=1, step_seconds=0.0049, peak_bytes=1 << 20, parameter_bytes=1 << 18)
    four = dataclasses.replace(alone, technique="fuse", step_seconds=0.018, knobs={"members": 4})
    two = fuse.predict([four], alone=alone, kind=cpu, members=2)
    assert 2 * alone.step_seconds < two.step_seconds[0] < four.step_seconds
    found, _ = derive_options([alone, four], Cluster.uniform(cpu, cores=2), members={"f": 64})
    assert {len(option.families) for option in found if option.technique == "fuse"} == {4, 5, 6, 7, 8, 16, 22, 32, 64}


def eight(seconds: float = 0.0024) -> Profile:
    return dataclasses.replace(GANG, step_seconds=seconds, peak_bytes=11 << 30, knobs={"members": 8})


def test_a_second_size_is_tried_where_there_are_clearly_more_tasks_than_were_fused() -> None:
    def wanted(members: int, *known: Profile, cluster: Cluster = CLUSTER) -> list[int]:
        found = trials(["f"], [ALONE, GANG, *known], cluster, members={"f": members}, failed=[REPLAYED])
        return [trial.members for trial in found if "compile" not in trial.knobs]

    assert [wanted(members) for members in (4, 5, 6, 50, 10_000)] == [[], [], [6], [50], [64]]
    assert wanted(8, eight()) == []
    assert wanted(11, eight()) == []
    small = Cluster.uniform(dataclasses.replace(H200, memory_bytes=20 << 30), memory_bytes=256 << 30, cores=16)
    assert wanted(50, cluster=small) == [17]  # of 18 that fit


@given(st.integers(2, 64))
def test_with_two_sizes_measured_others_lie_on_their_line(members: int) -> None:
    found = fuse.predict([eight(), GANG], alone=ALONE, kind=H200, members=members)
    assert found.step_seconds[0] == pytest.approx(0.0016 + 0.0002 * (members - 4), rel=1e-6)
    assert found.device_bytes == max(ALONE.peak_bytes, (6 << 30) + (members - 4) * (5 << 28))


def test_a_line_that_falls_promises_nothing_beyond_it() -> None:
    found = fuse.predict([GANG, eight(0.0012)], alone=ALONE, kind=H200, members=16)
    assert found.step_seconds[0] > 0.0012


def test_a_compiled_gang_is_predicted_from_compiled_ones() -> None:
    full = dataclasses.replace(GANG, step_seconds=0.0008, build_seconds=9.0, knobs={"members": 4, "compile": "full"})
    found, _ = derive_options([ALONE, GANG, full], CLUSTER, members={"f": 6})
    six = {option.knobs.get("compile"): option for option in found if len(option.families) == 6}
    assert six["full"].step_seconds[0] < six[None].step_seconds[0]


def test_six_tasks_of_a_family_are_one_gang_where_fused_steps_grow_slowly() -> None:
    offered, _ = derive_options([ALONE, GANG], CLUSTER, members={"f": 6})
    members = tuple(Member(task=name, steps=1000) for name in "abcdef")
    problem = Problem(cluster=CLUSTER, families=(Family(name="f", members=members),), options=offered)
    for planner in ("search", "list"):
        made = PLANNERS[planner](problem).schedule
        assert made is not None
        assert [len(placement.tasks) for placement in made.placements] == [6]


def test_what_was_rejected_is_not_offered_again_nor_anything_larger() -> None:
    def sizes(rejection: Rejection) -> set[int]:
        found, _ = derive_options([ALONE, GANG], CLUSTER, members={"f": 8}, rejected=[rejection])
        return {len(option.families) for option in found}

    no = Rejection(families=("f",) * 6, technique="fuse", kind="h200", count=1, reason="", knobs={"members": 6})
    assert sizes(no) == {1, 2, 3, 4, 5}
    assert sizes(dataclasses.replace(no, knobs={"members": 6, "compile": "full"})) == {*range(1, 9)}
    assert sizes(dataclasses.replace(no, families=("f",), knobs={})) == {1}  # as older stores have it


def like(name: str, seconds: float, *, operation: str = "Linear") -> Profile:
    layers = (LayerProfile(name="0", operation=operation, forward_seconds=1e-4, backward_seconds=2e-4),)
    return Profile(
        family=name, kind="cpu", count=1, step_seconds=seconds, peak_bytes=10 << 20, build_seconds=0.2, layers=layers
    )


def test_of_like_families_two_are_tried_and_the_others_borrow_in_proportion() -> None:
    kind = Kind(name="cpu", processor="cpu")
    cluster, members = Cluster.uniform(kind, devices_per_node=2), {"a": 4, "b": 5, "c": 4, "other": 4, "slow": 4}
    alone = [
        *(like(name, seconds) for name, seconds in (("a", 1.1e-3), ("b", 1.5e-3), ("c", 1.8e-3), ("slow", 4e-3))),
        like("other", 1.5e-3, operation="Conv2d"),
    ]

    def tried(*more: Profile, failed: tuple[Trial, ...] = ()) -> set[str]:
        found = trials(members, [*alone, *more], cluster, members=members, failed=failed)
        return {trial.family for trial in found if trial.technique == "fuse"}

    assert tried() == {"a", "b", "other", "slow"}
    gangs = [
        dataclasses.replace(like(name, seconds), technique="fuse", knobs={"members": 4}, peak_bytes=16 << 20)
        for name, seconds in (("a", 2.2e-3), ("b", 4.5e-3), ("other", 4e-3), ("slow", 8e-3))
    ]
    assert not tried(*gangs[:1], *gangs[2:]) - {"b"}
    assert not tried(*gangs)
    # One that cannot be fused lends to nobody, and the next one is tried in its place.
    assert "c" in tried(failed=(Trial(family="b", technique="fuse", kind="cpu", count=1, knobs={"members": 4}),))
    options, _ = derive_options([*alone, *gangs], cluster, members=members)
    sizes = {len(each.families): each for each in options if each.technique == "fuse" and each.families[0] == "c"}
    assert set(sizes) == {3, 4}  # two would take longer than one after the other
    assert not sizes[4].measured
    assert sizes[4].step_seconds[0] == pytest.approx(1.8e-3 * 4.5 / 1.5)  # as b, whose steps are the nearest
    assert sizes[4].host_bytes == 16 << 20
