"""A store filled as a controller would have filled it: a sweep on four devices, with everything that can happen."""

import math
import random

from dovetail.store import Point, Store
from dovetail.vocabulary import (
    Cluster,
    Event,
    Kind,
    Option,
    Placement,
    Plan,
    Program,
    Rejection,
    Schedule,
    Stop,
    Task,
    read_event,
    to_json,
)

START = 1_790_000_000.0
LOG = """Traceback (most recent call last):
  File "sweep.py", line 41, in charlm
    loss.backward()
dovetail.vocabulary.errors.TrainingError: the loss must stay finite; it was nan at step 361.
"""


def make_task(name: str, *, steps: int = 500, target: float | None = None, **parameters: object) -> Task:
    program = Program(reference="sweep.py:charlm", source="9f2c")
    stop = Stop(steps=steps, metric="accuracy" if target else None, at_least=target)
    return Task(name=name, program=program, parameters=parameters, stop=stop)


def make_option(technique: str = "resident", *, members: int = 1, count: int = 1, step_seconds: float = 0.5) -> Option:
    families = tuple(f"family{n}" for n in range(members))
    return Option(
        families=families, technique=technique, kind="h100", count=count, step_seconds=(step_seconds,) * members
    )


def fill_anew(store: Store, *, workload: str = "again") -> list[Task]:
    """Two tasks that were trained, and begun anew 10,000 s later: the first has finished since, the second runs."""
    tasks = [make_task(f"{workload}-{n}", target=0.5) for n in range(2)]
    store.add(tasks=[(workload, task) for task in tasks])
    for attempt, begin in ((1, START), (2, START + 10_000)):
        placements = [_placement(task, f"n0:{n}") for n, task in enumerate(tasks)]
        anew = [read_event("restarted", task=task.identity, attempt=1, at_seconds=begin) for task in tasks]
        store.add(events=anew if attempt == 2 else [])
        plan = Plan(schedule=Schedule(placements=tuple(placements)))
        store.add_plan(plan, workload=workload, at_seconds=begin + 1)
        for n, (task, placement) in enumerate(zip(tasks, placements, strict=True)):
            store.add(events=[started(task.identity, attempt, begin + 2, placement, f"p{attempt}{n}")])
            if (attempt, n) != (2, 1):
                end = {"task": task.identity, "attempt": attempt, "at_seconds": begin + 52}
                store.add(events=[read_event("finished", **end, data={"step": 500})])
    first = tasks[0].identity  # the points of the first attempts were removed
    points = [(100, 0.3, 12.0), (300, 0.6, 32.0)]
    store.add(
        points=[
            Point(task=first, name="accuracy", step=step, value=value, at_seconds=START + 10_000 + at)
            for step, value, at in points
        ]
    )
    return tasks


def _placement(task: Task, device: str) -> Placement:
    return Placement(
        tasks=(task.identity,),
        steps=(500,),
        option=make_option(step_seconds=0.1),
        devices=(device,),
        start_seconds=0.0,
        duration_seconds=50.0,
    )


def fill_sweep(store: Store) -> list[Task]:
    """Twelve tasks: finished, lost and resumed, failed on NaN, fused, running, pending."""
    tasks = [
        make_task(
            f"charlm-w{width}-lr{rate:g}",
            target=0.58 if width > 128 else None,
            width=width,
            learning_rate=rate,
            seed=0,
            api_key="hf_verysecret",
        )
        for width in (128, 256, 512, 1024)
        for rate in (1e-2, 1e-3, 3e-4)
    ]
    sweep = _Sweep(store, tasks)
    sweep.plan()
    sweep.run()
    return tasks


class _Sweep:
    def __init__(self, store: Store, tasks: list[Task]) -> None:
        self.store, self.tasks, self.random = store, tasks, random.Random(7)
        self.options = [make_option(step_seconds=0.12 * (1 + n // 3)) for n in range(len(tasks))]
        self.options[9] = make_option("pipeline", count=2, step_seconds=0.9)
        fused = make_option("fuse", members=3, step_seconds=0.2)
        self.options[:3] = [fused] * 3
        cluster = Cluster.uniform(
            Kind(name="h100", processor="cuda", memory_bytes=80 << 30), devices_per_node=4, cores=32
        )
        store.add(tasks=[("sweep", task) for task in tasks], hardware=[("cluster", cluster)])

    def placements(self) -> list[Placement]:
        free = [0.0] * 4
        made = []
        for gang in ([0, 1, 2], [9], [3], [4], [5], [6], [7], [8], [10], [11]):
            option = self.options[gang[0]]
            chosen = sorted(sorted(range(4), key=free.__getitem__)[: option.count])
            start = max(free[device] for device in chosen)
            seconds = option.seconds((500,) * len(gang)) + 4
            for device in chosen:
                free[device] = start + seconds
            made.append(
                Placement(
                    tasks=tuple(self.tasks[n].identity for n in gang),
                    steps=(500,) * len(gang),
                    option=option,
                    devices=tuple(f"n0:{device}" for device in chosen),
                    start_seconds=start,
                    duration_seconds=seconds,
                )
            )
        return made

    def plan(self) -> None:
        schedule = Schedule(placements=tuple(self.placements()))
        reason = "needs 91.2 GiB on one device with technique 'resident'; the largest is 80 GiB (n0:0)"
        rejections = (
            Rejection(
                families=("family9",),
                technique="resident",
                kind="h100",
                count=1,
                reason=reason,
                needed_bytes=int(91.2 * 2**30),
                free_bytes=80 << 30,
            ),
            Rejection(
                families=("family9", "family10"),
                technique="fuse",
                kind="h100",
                count=1,
                reason="fused members must have one structure; these have widths 1024 and 512",
            ),
        )
        lines = tuple(
            f"{task.name}: {option.technique} on {option.count} × h100, the fastest that leaves no device idle"
            for task, option in zip(self.tasks, self.options, strict=True)
        )
        plan = Plan(
            schedule=schedule,
            bound_seconds=0.94 * schedule.makespan_seconds,
            rejections=rejections,
            explanation=lines[:10],
        )
        self.first = schedule
        self.store.add_plan(plan, workload="sweep", at_seconds=START)
        later = Plan(
            schedule=Schedule(placements=schedule.placements[-4:]),
            bound_seconds=0.9 * schedule.makespan_seconds,
            rejections=rejections,
            explanation=lines[:10],
        )
        self.store.add_plan(later, workload="sweep", at_seconds=START + 160)
        reasons = {1: (0, "the run began"), 2: (160, "a task failed")}
        self.store.add(
            events=[
                read_event(
                    "planned",
                    at_seconds=START + after,
                    data={
                        "plan": number,
                        "workload": "sweep",
                        "makespan_seconds": schedule.makespan_seconds,
                        "bound_seconds": 0.94 * schedule.makespan_seconds,
                        "because": because,
                    },
                )
                for number, (after, because) in reasons.items()
            ]
        )

    def run(self) -> None:
        free = {f"n0:{n}": START + 3 for n in range(4)}
        for number, placement in enumerate(self.first.placements):
            if number == 9:
                continue  # not placed yet
            start = max(free[device] for device in placement.devices)
            stretch = self.random.uniform(0.93, 1.18)
            end = start + placement.duration_seconds * stretch
            for device in placement.devices:
                free[device] = end + 1
            for task in placement.tasks:
                self.one(number, task, placement, start, end)
        warned = read_event("warned", at_seconds=START + 20, data={"message": "batches are 20 % of each step"})
        self.store.add(events=[warned])

    def one(self, number: int, task: str, placement: Placement, start: float, end: float) -> None:
        index = next(n for n, each in enumerate(self.tasks) if each.identity == task)
        fate = {6: "lost", 3: "failed", 11: "pending", 10: "running"}.get(index, "finished")
        events = [read_event("fingerprinted", task=task, at_seconds=START, data={"family": f"family{index}"})]
        if fate == "lost":
            middle = start + 0.4 * (end - start)
            events += [
                started(task, 1, start, placement, f"p{number}"),
                read_event("saved", task=task, attempt=1, at_seconds=middle - 9, data={"step": 180, "path": "x"}),
                read_event(
                    "lost",
                    task=task,
                    attempt=1,
                    at_seconds=middle,
                    data={"reason": "the worker fell silent for 30 s", "log": "step 197\nKilled"},
                ),
                started(task, 2, middle + 2, placement, f"p{number}b", step=180),
            ]
            attempt = 2
        else:
            events.append(started(task, 1, start, placement, f"p{number}"))
            attempt = 1
        last = {"failed": 361, "running": 290}.get(fate, 500)
        points = self.points(task, index, start, end, last)
        at = start + (end - start) * last / 500
        if fate == "running":
            events.append(
                read_event("progress", task=task, attempt=attempt, at_seconds=at, data={"step": last, "points": []})
            )
        elif fate == "failed":
            data = {"reason": "the loss was nan at step 361", "log": LOG, "step": last}
            events.append(read_event("failed", task=task, attempt=attempt, at_seconds=at, data=data))
        else:
            events.append(
                read_event("finished", task=task, attempt=attempt, at_seconds=at, data={"step": last, "seconds": 1.0})
            )
        self.store.add(events=events, points=points)

    def points(self, task: str, index: int, start: float, end: float, last: int) -> list[Point]:
        floor = 1.9 - 0.12 * (index // 3) + 0.1 * (index % 3)
        made = []
        for step in range(5, last + 1, 4):
            at = start + (end - start) * step / 500
            loss = floor + 2.6 * math.exp(-step / 90) + self.random.gauss(0, 0.03)
            if index == 3 and step > 320:
                loss = float("nan") if step > 355 else loss + (step - 320) / 8
            made.append(Point(task=task, name="loss", step=step, value=loss, at_seconds=at))
            if step % 25 == 0:
                accuracy = 0.70 - floor * 0.05 - 0.5 * math.exp(-step / 120)
                made.append(Point(task=task, name="accuracy", step=step, value=accuracy, at_seconds=at))
        return made


def started(
    task: str, attempt: int, at_seconds: float, placement: Placement, number: str, *, step: int = 0, until: int = 500
) -> Event:
    data = {
        "placement": number,
        "devices": list(placement.devices),
        "step": step,
        "until": until,
        "predicted_seconds": placement.duration_seconds * (until - step) / placement.steps[0],
        "option": to_json(placement.option),
    }
    return read_event("started", task=task, attempt=attempt, at_seconds=at_seconds, data=data)


def fill_many(store: Store, *, count: int) -> None:
    """Many small finished tasks on eight devices, a few points each."""
    tasks = [make_task(f"many-{n:05d}", steps=100, width=n) for n in range(count)]
    option = make_option()
    events, points = [], []
    for n, task in enumerate(tasks):
        at = START + 50.0 * (n // 8)
        placement = Placement(
            tasks=(task.identity,),
            steps=(100,),
            option=option,
            devices=(f"n0:{n % 8}",),
            start_seconds=0.0,
            duration_seconds=48.0,
        )
        events.append(started(task.identity, 1, at, placement, f"p{n}", until=100))
        events.append(read_event("finished", task=task.identity, attempt=1, at_seconds=at + 49, data={"step": 100}))
        points += [
            Point(task=task.identity, name="loss", step=step, value=n / count + 1 / step, at_seconds=at + step / 3)
            for step in (10, 50, 100)
        ]
    store.add(tasks=[("many", task) for task in tasks], events=events, points=points)
