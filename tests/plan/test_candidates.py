"""Which options are offered, which are refused and in what words."""

import pytest

from dovetail.plan import Trial, counts, options, trials
from dovetail.plan.candidates import misfit
from dovetail.vocabulary import Cluster, Device, Kind, Node, Profile

from .problems import CPU, option

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


def test_trials_are_what_has_no_profile_yet() -> None:
    known = [profile(1), profile(3), profile(1, kind="h100"), profile(1, family="other")]
    assert trials(["f"], known, MIXED) == (Trial(family="f", technique="resident", kind="cpu", count=2),)
    assert len(trials(["f", "g", "f"], known, MIXED)) == 1 + 4


def test_options_that_fit_and_rejections_of_those_that_do_not() -> None:
    fits, large = profile(1, kind="h100"), profile(1, kind="h100", peak_bytes=61 << 30, family="large")
    offered, rejected = options([fits, large], MIXED)
    assert [each.families for each in offered] == [("f",)]
    assert [(each.families, each.needed_bytes, each.free_bytes) for each in rejected] == [
        (("large",), 61 << 30, 40 << 30)
    ]
    assert rejected[0].reason == (
        "needs 61.0 GiB on one device; the largest h100 has 40.0 GiB."
        " Use a smaller batch with accumulate, or a device with more memory."
    )


def test_profiles_of_other_clusters_are_no_matter_here() -> None:
    assert options([profile(kind="v100")], MIXED) == ((), ())


def test_the_later_of_two_profiles_counts() -> None:
    offered, _ = options([profile(seconds=1.0), profile(seconds=3.0)], MIXED)
    assert [each.step_seconds for each in offered] == [(3.0,)]


def test_only_what_is_dominated_is_pruned() -> None:
    offered, rejected = options([profile(1, seconds=1.0), profile(2, seconds=1.1), profile(3, seconds=0.9)], MIXED)
    assert ([each.count for each in offered], rejected) == ([1, 3], ())


def test_smaller_or_faster_or_of_another_family_or_kind_is_not_dominated() -> None:
    measured = [
        profile(1, seconds=1.0, peak_bytes=5),
        profile(2, seconds=1.0, peak_bytes=4),
        profile(2, seconds=2.0, family="g"),
        profile(1, seconds=2.0, kind="h100"),
    ]
    assert len(options(measured, MIXED)[0]) == 4


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
