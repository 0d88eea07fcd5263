"""One list schedule: who starts when, and with what, for a target."""

from dovetail.planning.schedule.dispatch import Lane, Queue, Started, dispatch
from dovetail.vocabulary import Cluster, Device, Kind, Member, Node, Option

from ..problems import CPU, option, placement


def lists(*offered: Option, steps: tuple[int, ...]) -> tuple[list[Queue], list[Lane]]:
    members = tuple(Member(task=f"t{position}", steps=count) for position, count in enumerate(steps))
    lanes = [Lane(queue=0, option=each, seconds=tuple(each.seconds((count,)) for count in steps)) for each in offered]
    fastest = tuple(min(lane.seconds[position] for lane in lanes) for position in range(len(steps)))
    return [Queue(members=members, fastest=fastest, ranks=fastest)], lanes


def starts(found: list[Started] | None) -> list[tuple[int, int, float]]:
    assert found is not None
    return [(started.position, started.lane, started.start_seconds) for started in found]


def test_the_longest_first_on_the_first_free_device() -> None:
    queues, lanes = lists(option(), steps=(5, 4, 3, 3, 3))
    found = dispatch(queues, lanes=lanes, cluster=Cluster.uniform(CPU, devices_per_node=2), target_seconds=11.0)
    assert starts(found) == [(0, 0, 0.0), (1, 0, 0.0), (2, 0, 4.0), (3, 0, 5.0), (4, 0, 7.0)]


def test_a_tight_target_makes_tasks_wide_and_a_loose_one_leaves_them_narrow() -> None:
    queues, lanes = lists(option(1, seconds=1.0), option(2, seconds=0.6), steps=(10,))
    cluster = Cluster.uniform(CPU, devices_per_node=2)
    assert starts(dispatch(queues, lanes=lanes, cluster=cluster, target_seconds=10.0)) == [(0, 0, 0.0)]
    assert starts(dispatch(queues, lanes=lanes, cluster=cluster, target_seconds=9.0)) == [(0, 1, 0.0)]
    assert dispatch(queues, lanes=lanes, cluster=cluster, target_seconds=5.0) is None


def test_a_shorter_task_starts_where_the_longest_would_end_too_late() -> None:
    cluster = Cluster(
        kinds=(CPU, Kind(name="slow", processor="cpu")),
        nodes=(Node(name="n0", cores=2, memory_bytes=8),),
        devices=tuple(Device(name=kind, kind=kind, node="n0", index=0) for kind in ("cpu", "slow")),
    )
    queues, lanes = lists(option(seconds=1.0), option(kind="slow", seconds=3.0), steps=(10, 8, 6))
    assert starts(dispatch(queues, lanes=lanes, cluster=cluster, target_seconds=19.0)) == [
        (0, 0, 0.0),
        (2, 1, 0.0),
        (1, 0, 10.0),
    ]


def test_what_runs_delays_what_starts() -> None:
    queues, lanes = lists(option(), steps=(5,))
    running = (placement("old", start=-1.0, seconds=4.0),)
    found = dispatch(queues, lanes=lanes, cluster=Cluster.uniform(CPU), running=running, target_seconds=8.0)
    assert starts(found) == [(0, 0, 3.0)]
    assert dispatch(queues, lanes=lanes, cluster=Cluster.uniform(CPU), running=running, target_seconds=7.0) is None


def test_no_member_no_start() -> None:
    assert dispatch([], lanes=[], cluster=Cluster.uniform(CPU), target_seconds=0.0) == []
