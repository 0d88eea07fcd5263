"""Which options are offered, which are refused and in what words."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dovetail.planning import PLANNERS, Problem, Trial, check, counts, derive_options, lower_bound, trials
from dovetail.planning.fitting import misfit
from dovetail.planning.options.kinds import parse_cluster
from dovetail.vocabulary import (
    Cluster,
    Device,
    Kind,
    LayerProfile,
    Link,
    Node,
    Option,
    Profile,
    Rejection,
    from_json,
    to_json,
)
from tests.planning.problems import CPU, family, option

H100 = Kind(name="h100", processor="cuda", memory_bytes=40 << 30)
MIXED = Cluster(
    kinds=(CPU, H100),
    nodes=(
        Node(name="n0", cores=3, memory_bytes=8 << 30, disk_bytes=50 << 30),
        Node(name="n1", cores=2, memory_bytes=4 << 30),
    ),
    devices=(
        *(Device(name=f"n0:{index}", kind="cpu", node="n0", index=index) for index in range(3)),
        Device(name="n1:0", kind="h100", node="n1", index=0),
        Device(name="n1:1", kind="h100", node="n1", index=1),
    ),
)


#: So many tasks of each family that is spoken of here.
MANY = {"f": 8, "g": 8, "h": 8}


def profile(
    count: int = 1, *, seconds: float = 1.0, kind: str = "cpu", peak_bytes: int = 1 << 20, family: str = "f"
) -> Profile:
    return Profile(family=family, kind=kind, count=count, step_seconds=seconds, peak_bytes=peak_bytes)


@pytest.mark.parametrize(("cores", "offered"), [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))])
def test_counts_on_a_cpu_are_powers_of_two_and_the_most(cores: int, offered: tuple[int, ...]) -> None:
    assert counts(Cluster.uniform(CPU, nodes=2, devices_per_node=cores), CPU) == offered


def test_counts_elsewhere() -> None:
    assert counts(MIXED, H100) == (1,)
    assert counts(Cluster.uniform(CPU), H100) == ()
    assert counts(Cluster.uniform(H100), CPU) == ()


def scaling(kind: str = "cpu") -> list[Profile]:
    """Profiles on up to three cores that leave nothing for copies to win."""
    return [profile(count, kind=kind, seconds=1 / count) for count in (1, 2, 3)]


def test_trials_are_what_has_no_profile_yet() -> None:
    one, _, three = scaling()
    known = [one, three, profile(1, kind="h100", seconds=1e-4), profile(1, family="other")]
    replayed = Trial(family="f", technique="graph", kind="h100", count=1)
    assert trials(["f"], known, MIXED) == (Trial(family="f", technique="resident", kind="cpu", count=2), replayed)
    assert len(trials(["f", "g", "f"], known, MIXED)) == 2 + 4


def replicated(known: list[Profile], *, failed: list[Trial] | None = None) -> list[tuple[str, int]]:
    wanted = trials(["f"], known, MIXED, failed=failed or [])
    return [(each.kind, each.count) for each in wanted if each.technique == "replicate"]


def test_copies_are_tried_where_they_should_be_clearly_faster_than_as_many_threads() -> None:
    assert replicated(scaling()) == []
    assert replicated([profile(1), profile(2), profile(3, seconds=0.34)]) == [("cpu", 2)]
    assert replicated([profile(1)]) == []  # threads come first
    assert replicated([profile(1, seconds=1e-3), profile(2, seconds=1e-3)]) == []  # a step of nothing but waiting
    failed = [Trial(family="f", technique="replicate", kind="cpu", count=2)]
    assert replicated([profile(1), profile(2)], failed=failed) == []


def test_copies_on_accelerators_are_tried_where_each_holds_the_model() -> None:
    assert replicated([profile(kind="h100")]) == [("h100", 2)]
    heavy = dataclasses.replace(profile(kind="h100"), parameter_bytes=20 << 30)
    assert replicated([heavy]) == []  # gradients take longer to send than half the rows to compute
    assert replicated([profile(kind="h100", peak_bytes=90 << 30)]) == []
    assert replicated([profile(kind="h100", peak_bytes=60 << 30)]) == [("h100", 2)]  # activations are split


def test_measured_ranks_take_a_core_each() -> None:
    known = dataclasses.replace(profile(2, kind="h100"), technique="shard")
    ((offered,), rejected) = derive_options([known], MIXED)
    assert (offered.technique, offered.count, offered.cores, rejected) == ("shard", 2, 2, ())


def test_options_that_fit_and_rejections_of_those_that_do_not() -> None:
    fits, large = profile(1, kind="h100"), profile(1, kind="h100", peak_bytes=61 << 30, family="large")
    offered, rejected = derive_options([fits, large], MIXED)
    assert [each.families for each in offered] == [("f",)]
    assert [(each.families, each.needed_bytes, each.free_bytes) for each in rejected] == [
        (("large",), 61 << 30, 40 << 30)
    ]
    assert rejected[0].reason == (
        "needs 61.0 GiB on one device; the largest h100 has 40.0 GiB."
        " Use a smaller batch with accumulate, or a device with more memory."
    )


def test_profiles_of_other_clusters_are_no_matter_here() -> None:
    assert derive_options([profile(kind="v100")], MIXED) == ((), ())


def test_the_later_of_two_profiles_counts() -> None:
    offered, _ = derive_options([profile(seconds=1.0), profile(seconds=3.0)], MIXED)
    assert [each.step_seconds for each in offered] == [(3.0,)]


def test_only_what_is_dominated_is_pruned() -> None:
    offered, rejected = derive_options(
        [profile(1, seconds=1.0), profile(2, seconds=1.1), profile(3, seconds=0.9)], MIXED
    )
    assert ([each.count for each in offered], rejected) == ([1, 3], ())


def test_smaller_or_faster_or_of_another_family_or_kind_is_not_dominated() -> None:
    measured = [
        profile(1, seconds=1.0, peak_bytes=5),
        profile(2, seconds=1.0, peak_bytes=4),
        profile(2, seconds=2.0, family="g"),
        profile(1, seconds=2.0, kind="h100"),
    ]
    assert len(derive_options(measured, MIXED)[0]) == 4


def test_the_words_of_a_misfit() -> None:
    def reason(**more: int) -> str:
        rejection = misfit(option(**more), MIXED)
        assert rejection is not None
        return rejection.reason

    assert reason(count=4) == "needs 4 × cpu on one node; the most is 3."
    assert reason(host_bytes=9 << 30) == (
        "needs 9.0 GiB of host memory on one node; the largest that could hold it has 8.0 GiB. "
        "Make the model or its batch smaller, or add a node with more memory."
    )
    assert reason(disk_bytes=51 << 30).startswith(
        "needs 51.0 GiB of disk on one node; the largest that could hold it has 50.0"
    )
    assert reason(cores=4).startswith("needs 4 cores on one node; the largest that could hold it has 3.")
    unknown = misfit(option(kind="v100"), MIXED)
    assert unknown is not None
    assert unknown.reason == "needs a device of kind 'v100'; the cluster has none."


def test_what_one_node_has_does_not_help_another() -> None:
    # The cpu node has the memory; the h100 node does not.
    assert misfit(option(host_bytes=8 << 30), MIXED) is None
    rejection = misfit(option(kind="h100", host_bytes=8 << 30), MIXED)
    assert rejection is not None
    assert (rejection.needed_bytes, rejection.free_bytes) == (8 << 30, 4 << 30)


def test_a_disk_that_nobody_measured_holds_anything() -> None:
    assert misfit(option(kind="h100", disk_bytes=1 << 50), MIXED) is None


def test_spilling_and_sharding_are_tried_only_where_being_resident_does_not_fit() -> None:
    shard = Trial(family="f", technique="shard", kind="h100", count=2)
    spill = Trial(family="f", technique="spill", kind="h100", count=1)
    known = [*scaling(), profile(kind="h100", seconds=1e-4)]
    assert {trial.technique for trial in trials(["f"], known, MIXED)} == {"graph"}
    large = [*known[:3], profile(kind="h100", seconds=1e-4, peak_bytes=41 << 30)]
    assert trials(["f"], large, MIXED) == (shard, spill)
    failed = [Trial(family="f", technique="resident", kind="h100", count=1)]
    assert trials(["f"], known[:3], MIXED, failed=failed) == (shard, spill)
    assert trials(["f"], known[:3], MIXED, failed=[*failed, shard, spill]) == ()
    assert trials(["f"], [*large, dataclasses.replace(known[3], technique="spill")], MIXED) == (shard,)


def test_on_a_cpu_nothing_is_spilled_or_sharded() -> None:
    failed = [Trial(family="f", technique="resident", kind="cpu", count=count) for count in (1, 2, 3)]
    assert {each.kind for each in trials(["f"], [], MIXED, failed=failed)} == {"h100"}
    huge = dataclasses.replace(layered(), kind="cpu")
    assert {each.technique for each in derive_options([huge], Cluster.uniform(CPU, memory_bytes=999 << 30))[0]} == {
        "resident"
    }


def layered(
    name: str = "f", *, gib: float = 110, seconds: float = 0.8, clips: bool = False, blocks: int = 24
) -> Profile:
    """A model of so many blocks of 2^28 parameters that took so much memory resident, with its layers."""
    layers = tuple(
        LayerProfile(
            name=f"blocks.{number}",
            operation="Block",
            forward_seconds=seconds / blocks / 4,
            backward_seconds=3 * seconds / blocks / 4,
            parameter_bytes=1 << 30,
            activation_bytes=1 << 26,
        )
        for number in range(blocks)
    )
    return Profile(
        family=name,
        kind="h200",
        count=1,
        step_seconds=seconds,
        peak_bytes=int(gib * 2**30),
        parameter_bytes=blocks << 30,
        optimizer_bytes=blocks << 31,
        layers=layers,
        clips=clips,
        precision="bf16-pure",
    )


def machine(gib: int = 24, *, memory_gib: int = 250) -> Cluster:
    """One device with so much memory on a fast host."""
    kind = Kind(name="h200", processor="cuda", memory_bytes=gib << 30, memory_bytes_per_second=3.2e12)
    node = Node(name="n0", cores=16, memory_bytes=memory_gib << 30, update_parameters_per_second=4.7e9)
    links = tuple(Link(source=a, target=b, bytes_per_second=55e9) for a, b in (("host", "h200"), ("h200", "host")))
    device = Device(name="n0:0", kind="h200", node="n0", index=0)
    return Cluster(kinds=(kind,), nodes=(node,), devices=(device,), links=links)


def techniques(found: tuple[Option, ...]) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.technique, each.families) for each in found]


def test_a_model_too_large_for_its_device_is_offered_spilled_within_several_budgets() -> None:
    offered, rejected = derive_options([layered()], machine(24))
    assert [each.technique for each in rejected] == ["resident"]
    assert techniques(offered) == [("spill", ("f",))] * 3
    assert [each.knobs["device_bytes"] >> 20 for each in offered] == [23040, 12288, 6144]
    assert all(each.device_bytes <= each.knobs["device_bytes"] and not each.measured for each in offered)
    seconds = [each.step_seconds for each in offered]
    assert seconds == sorted(seconds)


def test_what_fits_a_budget_resident_is_not_spilled_there() -> None:
    assert techniques(derive_options([layered(gib=5)], machine(24))[0]) == [("resident", ("f",))]
    found = derive_options([layered(gib=20, blocks=4)], machine(24))[0]
    assert techniques(found)[0] == ("resident", ("f",))
    assert {each.knobs["device_bytes"] >> 30 for each in found[1:]} <= {12, 6}


def test_a_profile_without_layers_or_a_kind_without_memory_predicts_nothing() -> None:
    bare = dataclasses.replace(layered(), layers=())
    assert techniques(derive_options([bare], machine(24))[0]) == []
    assert techniques(derive_options([layered()], machine(0))[0]) == [("resident", ("f",))]


def test_a_measured_budget_is_not_predicted_and_a_prediction_prunes_nothing_measured() -> None:
    measured = dataclasses.replace(
        layered(), technique="spill", layers=(), peak_bytes=20 << 30, step_seconds=99.0, host_bytes=240 << 30
    )
    offered, _ = derive_options([layered(), measured], machine(24))
    assert [(each.measured, each.knobs.get("device_bytes", 0) >> 30) for each in offered] == [
        (True, 0),
        (False, 12),
        (False, 6),
    ]
    assert offered[0].cores == 16
    half = dataclasses.replace(measured, knobs={"device_bytes": 12 << 30}, peak_bytes=11 << 30, step_seconds=100.0)
    assert [each.measured for each in derive_options([layered(), measured, half], machine(24))[0]] == [
        True,
        True,
        False,
    ]


def test_what_cannot_be_spilled_either_says_why_once() -> None:
    offered, rejected = derive_options([layered()], machine(24, memory_gib=32))
    assert offered == ()
    assert [each.technique for each in rejected] == ["resident", "spill"]
    assert "of host memory for the segments that stream" in rejected[1].reason
    assert rejected[1].needed_bytes > rejected[1].free_bytes == 32 << 30


def test_gangs_are_offered_where_asked_for_and_where_they_beat_one_after_another() -> None:
    profiles = [layered(clips=True), layered("g", clips=True, seconds=2.0)]
    alone, _ = derive_options(profiles, machine(48, memory_gib=999))
    offered, _ = derive_options(profiles, machine(48, memory_gib=999), members=MANY)
    assert offered[: len(alone)] == alone
    assert all(len(each.families) == 1 for each in alone)
    gangs = offered[len(alone) :]
    assert ("f", "f") in {each.families for each in gangs}
    assert ("f", "g") in {each.families for each in gangs}
    best = {each.families[0]: each.step_seconds[0] for each in reversed(alone)}
    for each in gangs:
        assert each.technique == "interleave"
        assert set(each.step_seconds) == {each.step_seconds[0]}
        assert each.step_seconds[0] < sum(best[name] for name in each.families)
        assert each.device_bytes <= 45 << 30
        assert misfit(each, machine(48, memory_gib=999)) is None


def test_gangs_whose_members_all_fit_resident_are_not_interleaved() -> None:
    assert techniques(derive_options([layered(gib=4, blocks=1)], machine(48), members=MANY)[0]) == [
        ("resident", ("f",))
    ]


def test_a_measured_gang_is_offered_where_asked_for() -> None:
    measured = dataclasses.replace(layered(gib=20), technique="interleave", layers=(), host_bytes=200 << 30)
    assert derive_options([measured], machine(24)) == ((), ())
    assert techniques(derive_options([measured], machine(24), members=MANY)[0]) == [("interleave", ("f", "f"))]


def reading(name: str, *, seconds: float = 0.03, batch_seconds: float = 0.02, **fields: Any) -> Profile:
    """A task that says which batches it reads."""
    fields = {"kind": "cpu", "count": 1, "shares": "images", "peak_bytes": 1 << 20, **fields}
    return Profile(family=name, step_seconds=seconds, batch_seconds=batch_seconds, **fields)


def test_those_that_read_the_same_are_offered_together_where_that_saves_something() -> None:
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=2, memory_bytes=8 << 30)
    same = [reading("f"), reading("g", seconds=0.04), reading("h", seconds=0.05)]
    alone, _ = derive_options(same, cluster)
    offered, _ = derive_options(same, cluster, members=MANY)
    gangs = {each.families: each for each in offered[len(alone) :]}
    assert {("f", "f"), ("f", "g"), ("f", "g", "h")} <= gangs.keys()
    assert {each.technique for each in gangs.values()} == {"together"}
    assert gangs["f", "g"].step_seconds == pytest.approx((0.05, 0.05))
    assert gangs["f", "g", "h"].step_seconds[0] == pytest.approx(0.08)
    others = [reading("f"), reading("g", shares="text")], [reading("f"), reading("g", accumulate=2)]
    quick = [reading("f", batch_seconds=1e-4), reading("g", batch_seconds=1e-4)]
    for profiles in (*others, quick):
        assert ("f", "g") not in {each.families for each in derive_options(profiles, cluster, members=MANY)[0]}


def test_planners_and_bounds_live_with_gangs() -> None:
    profiles = [layered(clips=True), layered("g", clips=True, seconds=2.0)]
    offered, rejections = derive_options(profiles, machine(48, memory_gib=999), members=MANY)
    tasks = (family("f", a=100, b=50), family("g", c=30))
    problem = Problem(cluster=machine(48, memory_gib=999), families=tasks, options=offered, rejections=rejections)
    made = PLANNERS["list"](problem)
    assert made.schedule is not None
    check(made.schedule, problem.cluster)
    assert {each.option.technique for each in made.schedule.placements} <= {"spill", "interleave"}
    single = dataclasses.replace(problem, options=tuple(each for each in offered if len(each.families) == 1))
    assert 0 < lower_bound(problem) <= min(lower_bound(single), made.schedule.makespan_seconds)


def in_a_row(**fields: Any) -> Profile:
    """Four equal layers in a row."""
    layers = tuple(
        LayerProfile(name=name, operation="Linear", forward_seconds=0.01, backward_seconds=0.02, parameter_bytes=8)
        for name in "abcd"
    )
    edges = (("a", "b"), ("b", "c"), ("c", "d"))
    fields = {"step_seconds": 0.96, "accumulate": 8, **fields}
    return Profile(family="f", kind="cpu", count=1, peak_bytes=1 << 20, layers=layers, edges=edges, **fields)


def pipelines(known: list[Profile], *, rejected: Sequence[Rejection] = ()) -> list[Option]:
    cluster = Cluster.uniform(CPU, devices_per_node=2, memory_bytes=8 << 30)
    offered, _ = derive_options(known, cluster, rejected=rejected)
    return [each for each in offered if each.technique == "pipeline"]


def test_pipelines_are_offered_with_their_stages_where_they_should_be_clearly_faster() -> None:
    (found,) = pipelines([in_a_row(), profile(2, seconds=0.9)])
    assert (found.count, found.measured, found.cores) == (2, False, 2)
    assert found.knobs["stages"] == (("a", "b"), ("c", "d"))
    assert (found.knobs["timetable"], found.knobs["microbatches"]) == ("zero_bubble", 8)
    refused = Rejection(families=("f",), technique="pipeline", kind="cpu", count=2, reason="", knobs=found.knobs)
    (other,) = pipelines([in_a_row(), profile(2, seconds=0.9)], rejected=[from_json(Rejection, to_json(refused))])
    assert found.step_seconds < other.step_seconds  # the next best, where the best was tried and refused
    assert pipelines([in_a_row(), profile(2, seconds=0.5)]) == []
    assert pipelines([in_a_row()]) == []  # threads come first
    assert pipelines([in_a_row(accumulate=1, step_seconds=0.12), profile(2, seconds=0.12)]) == []  # nothing to overlap


def test_weights_change_under_way_only_where_the_program_asks_for_it() -> None:
    (found,) = pipelines([in_a_row(timetable="2bw"), profile(2, seconds=0.9)])
    assert found.knobs["timetable"] == "2bw"
    assert found.step_seconds[0] == pytest.approx(0.48, rel=0.02)  # no bubble


def on_v100(*, gib: float, **fields: Any) -> dict[str, list[Option]]:
    """What is offered of a model on a node of eight devices that are not here, by technique."""
    cluster = parse_cluster("8xv100")
    known = dataclasses.replace(layered(gib=gib, blocks=4), kind="v100", **fields)
    offered, rejected = derive_options([known], cluster, imagined=["v100"])
    assert {each.technique for each in rejected} <= {"resident"}
    assert all(not each.measured for each in offered if each.technique != "resident")
    assert derive_options([known], cluster)[0] == tuple(o for o in offered if o.technique not in ("replicate", "shard"))
    return {name: [each for each in offered if each.technique == name] for name in {o.technique for o in offered}}


def test_where_nothing_can_be_tried_copies_are_predicted() -> None:
    found = on_v100(gib=15)
    assert [each.count for each in found["replicate"]] == [2, 4, 8]
    seconds = [each.step_seconds[0] for each in (*found["resident"], *found["replicate"])]
    assert seconds == sorted(seconds, reverse=True)
    assert "shard" not in found


def test_a_model_too_large_for_an_imagined_device_is_sharded_spilled_or_pipelined() -> None:
    blocks = [f"blocks.{number}" for number in range(4)]
    edges = tuple(itertools.pairwise(blocks))
    found = on_v100(gib=30, edges=edges, accumulate=8, step_seconds=6.4)
    assert found.keys() == {"shard", "spill", "pipeline"} | found.keys() & {"replicate"}
    assert max(each.device_bytes for each in (*found["shard"], *found["pipeline"])) <= 16 << 30


def test_what_no_number_of_imagined_devices_holds_is_refused_once_with_the_most() -> None:
    known = dataclasses.replace(layered(gib=900), kind="v100", layers=())
    offered, rejected = derive_options([known], parse_cluster("8xv100"), imagined=["v100"])
    assert offered == ()
    assert [(each.technique, each.count) for each in rejected] == [("resident", 1), ("shard", 8)]


def only(*names: str) -> Callable[..., bool]:
    return lambda technique, knobs: technique in names


def test_what_users_forbid_is_neither_offered_nor_tried() -> None:
    small = layered(gib=5)
    assert techniques(derive_options([small], machine(24), may=only("resident"))[0]) == [("resident", ("f",))]
    assert derive_options([small], machine(24), may=only("fuse")) == ((), ())
    large = layered()
    assert all(name == "spill" for name, _ in techniques(derive_options([large], machine(24), may=only("spill"))[0]))
    wanted = trials(["f"], [large], machine(24), may=only("resident", "spill"))
    assert {trial.technique for trial in wanted} == {"spill"}


def test_where_nobody_may_be_resident_others_need_not_be_faster_or_smaller() -> None:
    small = layered(gib=5)
    offered, _ = derive_options([small], machine(24), may=only("spill"))
    assert {name for name, _ in techniques(offered)} == {"spill"}
    assert {trial.technique for trial in trials(["f"], [small], machine(24), may=only("spill"))} == {"spill"}
    # Being resident is measured all the same: others are predicted from that.
    assert {trial.technique for trial in trials(["f"], [], machine(24), may=only("spill"))} == {"resident", "spill"}


class TestApproximations:
    """What is allowed by name is measured after, offered beside and never in place of what is exact."""

    ALLOWED = {"f": ("state-8bit",)}  # noqa: RUF012

    def measured(self, **fields):
        return Profile(
            **{"family": "f", "kind": "cpu", "count": 1, "step_seconds": 1.0, "peak_bytes": 1 << 20, **fields}
        )

    def cluster(self):
        return Cluster.uniform(Kind(name="cpu", processor="cpu"), memory_bytes=8 << 30)

    def knobs(self, found):
        return [dict(each.knobs) for each in found]

    def test_without_a_name_nothing_changes(self):
        fast = self.measured(knobs={"approximate": "state-8bit"}, step_seconds=0.5)
        options, _ = derive_options([self.measured(), fast], self.cluster())
        assert self.knobs(options) == [{}]
        assert not trials(["f"], [self.measured()], self.cluster())

    def test_it_is_tried_after_exact_steps_were(self):
        first = trials(["f"], [], self.cluster(), allowed=self.ALLOWED)
        assert self.knobs(first) == [{}]
        then = trials(["f"], [self.measured()], self.cluster(), allowed=self.ALLOWED)
        assert self.knobs(then) == [{"approximate": "state-8bit"}]
        failed = trials(["f"], [], self.cluster(), failed=first, allowed=self.ALLOWED)
        assert self.knobs(failed)[0] == {"approximate": "state-8bit"}
        both = [self.measured(), self.measured(knobs={"approximate": "state-8bit"})]
        assert not trials(["f"], both, self.cluster(), allowed=self.ALLOWED)

    def test_both_are_offered_though_one_is_better(self):
        fast = self.measured(knobs={"approximate": "state-8bit"}, step_seconds=0.5)
        options, _ = derive_options([self.measured(), fast], self.cluster(), allowed=self.ALLOWED)
        assert self.knobs(options) == [{}, {"approximate": "state-8bit"}]
        assert [option.measured for option in options] == [True, True]

    def test_what_is_not_its_family_s_is_not_offered(self):
        other = self.measured(family="g", knobs={"approximate": "state-8bit"})
        options, _ = derive_options([self.measured(), other], self.cluster(), allowed=self.ALLOWED)
        assert [option.families for option in options] == [("f",)]
