"""Which models of a store answer, and their server."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.control import Result, TaskResult, open_result
from dovetail.engines import detect
from dovetail.planning.serving import (
    KindOffer,
    LatencyCurve,
    ServingPlan,
    arrivals_at,
    check_serving,
    plan_serving,
)
from dovetail.serve.cascades.model_cascade import ModelCascade
from dovetail.serve.server.measuring import measure_latency
from dovetail.serve.server.model_server import LOOPBACK, listen, serve_model
from dovetail.serve.server.schema import Schema
from dovetail.serve.server.served_model import ServedModel, best_device, inputs_of
from dovetail.train.build import build
from dovetail.verbs.make_cascade import cascade
from dovetail.vocabulary import DovetailError

# What a request takes beside its call (HTTP, the queue); requests that a plan is simulated with; and by which share the
# rate must have changed to plan again.
OVERHEAD_SECONDS, _PLANNED_REQUESTS, _CHANGED = 0.002, 5000, 0.25


@dataclasses.dataclass(frozen=True)
class LatencyPromise:
    """99 of 100 answers within `p99` seconds, at so many requests a second."""

    p99: float
    rate: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedChoice:
    """What is to answer: the best model of a store by a metric, or a cascade that ends with it."""

    store: Path
    metric: str
    goal: str = "max"
    workload: str | None = None
    lose: float | None = None
    """At most this share may be lost; None: the best model alone."""
    confidence: float = 0.95
    batch_rows: int = 32

    def choose(self) -> tuple[Callable[[], ServedModel], dict[str, Any]]:
        """How a replica loads it, and what is said of it."""
        result = open_result(self.store, workload=self.workload)
        best = result.best(self.metric, goal=self.goal)
        stages: tuple[tuple[str, float], ...] = ()
        about = {"model": best.name, self.metric: best.value(self.metric)}
        if self.lose is not None:
            found = self._cascade(result, best)
            stages = found.stages
            about |= {"cascade": str(found)}
        load = functools.partial(load_served, self.store, self.workload, stages, best.name)
        return load, about

    def _cascade(self, result: Result, best: TaskResult) -> ModelCascade:
        assert self.lose is not None
        held_out = build(best.task, home=best.home).held_out
        if held_out is None:
            raise DovetailError(
                "a cascade must have rows that no training has seen: let the program give "
                "Training(held_out=[(inputs, labels), ...]), or make one by dt.cascade(result, calibrate=...)."
            )
        return cascade(
            result,
            metric=self.metric,
            goal=self.goal,
            calibrate=held_out,
            lose=self.lose,
            confidence=self.confidence,
            batch_rows=self.batch_rows,
        )

    def schema(self) -> Schema:
        """What the best model takes, by the first batch of its program."""
        best = open_result(self.store, workload=self.workload).best(self.metric, goal=self.goal)
        return schema_of(best)


def schema_of(task: TaskResult) -> Schema:
    """What a task's model takes, by the first batch of its program."""
    return Schema.of(inputs_of(next(iter(build(task.task, home=task.home).batches))))


def load_served(store: Path, workload: str | None, stages: tuple[tuple[str, float], ...], last: str) -> ServedModel:
    """In a replica: the models, loaded."""
    import torch

    result = open_result(store, workload=workload)
    device = best_device()
    schema = schema_of(result[last])
    model = result[last].model().to(device)
    before = [(name, result[name].model(), threshold) for name, threshold in stages]
    answering = ModelCascade(before, (last, model), device=torch.device(device)) if before else model
    found = ServedModel(answering, schema, device)
    found.answer(schema.example(1))  # a first call takes longer than others, and nobody is to wait for it
    return found


def serve(
    choice: ServedChoice,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    replicas: int = 1,
    threads: int = 1,
    wait_seconds: float = 0.002,
    within: float = 1.0,
    token: str = "",
    promise: LatencyPromise | None = None,
    said: Callable[[str], None] = print,
) -> None:
    """Serve until it is stopped. Whoever listens to others than this machine must have a token. With a `promise`,
    replicas, rows of a call and the wait are planned by what calls take here, and planned again as the rate changes."""
    if host not in LOOPBACK and not token:
        raise DovetailError(
            f"a server that others than this machine reach, at {host}, must have a token: put one into a file of yours "
            f"and give it by --token-file."
        )
    listener = listen(host, port)
    load, about = choice.choose()
    said(str(about.get("cascade", about["model"])))
    schema, replan = choice.schema(), None
    if promise is not None:
        planner = _Planner(promise, measure_latency(load, schema, threads=threads), said)
        plan = planner.plan(promise.rate)
        said(str(plan))
        group = plan.groups[0]
        replicas, wait_seconds = group.count, plan.wait_seconds
        choice = dataclasses.replace(choice, batch_rows=group.batch_rows)
        replan = planner.replan
    asyncio.run(
        serve_model(
            load,
            schema,
            listener,
            choose=choice.choose,
            about=about,
            replicas=replicas,
            threads=threads,
            batch_rows=choice.batch_rows,
            wait_seconds=wait_seconds,
            within=within,
            token=token,
            replan=replan,
            said=said,
        )
    )


class _Planner:
    """Plans for this machine: one kind of device, as many replicas as there are places for them."""

    def __init__(self, promise: LatencyPromise, curve: LatencyCurve, said: Callable[[str], None]) -> None:
        self._promise, self._said = promise, said
        devices = len(detect().devices)
        self._offers = [KindOffer("replica", 1.0, devices, {"this model": curve})]
        self._planned = 0.0

    def plan(self, rate: float) -> ServingPlan:
        """For a rate; checked by what counts for itself."""
        arrivals = arrivals_at(rate, _PLANNED_REQUESTS)
        plan = plan_serving(self._offers, arrivals, p99=self._promise.p99, overhead=OVERHEAD_SECONDS)
        if wrong := check_serving(plan, self._offers, rate=rate, p99=self._promise.p99):
            raise DovetailError(f"a plan must hold what it promises; found: {'; '.join(wrong)}.")
        self._planned = rate
        return dataclasses.replace(plan, price=0.0)  # nobody pays for the devices of this machine

    def replan(self, rate: float) -> ServingPlan | None:
        """For a rate that was seen, where it is far from the one that was planned for."""
        if not rate or abs(rate - self._planned) <= _CHANGED * self._planned:
            return None
        return self.plan(rate)
