"""Which models of a store answer, and their server."""

import dataclasses
import functools
import math
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy

from dovetail.control import Result, TaskResult, open_result
from dovetail.planning.serving import ServingPlan
from dovetail.serve.cascades.labelled import gather
from dovetail.serve.cascades.model_cascade import ModelCascade
from dovetail.serve.server.measuring import measure_server
from dovetail.serve.server.model_server import LOOPBACK, listen, run_loop, serve_model
from dovetail.serve.server.ray_deployment import DeploymentSettings, serve_on_ray
from dovetail.serve.server.schema import Schema
from dovetail.serve.server.served_model import ServedModel, best_device, inputs_of, required_count
from dovetail.train.build import build
from dovetail.verbs.engine_places import open_place
from dovetail.verbs.latency_promise import LatencyPromise, ServingPlanner, offers_here, offers_on, priced_cluster
from dovetail.verbs.make_cascade import cascade
from dovetail.verbs.measure import rated_cluster
from dovetail.verbs.retrain import RowTraining
from dovetail.vocabulary import DovetailError

# Rows held out that later ones are compared with, at least and at most.
_LEAST_REFERENCE_ROWS, _REFERENCE_ROWS = 500, 5000


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedChoice:
    """What is to answer: the best model of a store by a metric, or a cascade that ends with it."""

    store: Path
    metric: str
    goal: str | None = None
    """As of `Result.best`: without it, what the metric's name says."""
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

    def reference(self) -> tuple[list[numpy.ndarray], numpy.ndarray] | None:
        """Rows that the best model's program holds out, with their classes, where it does: at most so many as tell a
        drift from chance."""
        best = open_result(self.store, workload=self.workload).best(self.metric, goal=self.goal)
        held_out = build(best.task, home=best.home).held_out
        try:
            rows = gather(held_out if held_out is not None else []).take(slice(0, _REFERENCE_ROWS))
        except DovetailError:  # none, or none with a label for each: the first that come will do
            return None
        if len(rows) < _LEAST_REFERENCE_ROWS:
            return None
        inputs = inputs_of(rows.inputs) if not isinstance(rows.inputs, tuple) else rows.inputs
        arrays = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else [inputs]
        return [numpy.asarray(each) for each in arrays], rows.labels.numpy()

    def schema(self) -> Schema:
        """What the best model takes, by the first batch of its program."""
        best = open_result(self.store, workload=self.workload).best(self.metric, goal=self.goal)
        return schema_of(best)


def schema_of(task: TaskResult) -> Schema:
    """What a task's model takes, by the first batch of its program."""
    training = build(task.task, home=task.home)
    return Schema.of(inputs_of(next(iter(training.batches)), count=required_count(training.model)))


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
    try:
        found.answer(schema.example(1))  # a first call takes longer than others, and nobody is to wait for it
    except (DovetailError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        names = ", ".join(field.name for field in schema.fields)
        raise DovetailError(
            f"a served model must answer what its batches hold beside the labels, here {names}; it raised "
            f"{type(error).__name__}: {error}. Let a batch be (inputs, labels), ((one, another), labels), or a dict by "
            f"the names of the model's forward."
        ) from error
    return found


def plan_on_cluster(
    choice: ServedChoice, promise: LatencyPromise, cluster: str, *, prices: Mapping[str, float], threads: int = 1
) -> ServingPlan:
    """The cheapest replicas on a cluster that is described, by what calls take here. Nothing is served."""
    here = rated_cluster(store=choice.store)
    there = priced_cluster(cluster, prices=prices, here=here)
    load, _ = choice.choose()
    measured = measure_server(load, choice.schema(), threads=threads)
    best = open_result(choice.store, workload=choice.workload).best(choice.metric, goal=choice.goal)
    parameter_bytes = sum(each.numel() * each.element_size() for each in best.model().parameters())
    offers = offers_on(there, here=here, curve=measured.curve, parameter_bytes=parameter_bytes)
    return ServingPlanner(promise, offers, front=measured.front).first()


def serve_by_ray(
    choice: ServedChoice,
    *,
    address: str,
    host: str,
    port: int,
    settings: DeploymentSettings,
    promise: LatencyPromise | None = None,
    said: Callable[[str], None] = print,
) -> None:
    """Serve by Ray Serve on a cluster until it is stopped. With a `promise`, replicas are planned by what calls take on
    this machine, for as many devices as the cluster has of its kind, and planned again as the rate changes."""
    _check_host(host, settings.token)
    load, about = choice.choose()
    said(str(about.get("cascade", about["model"])))
    schema = choice.schema()
    best = open_result(choice.store, workload=choice.workload).best(choice.metric, goal=choice.goal)
    stop = threading.Event()
    with open_place("ray", address=address, programs=[best.task.program], home=choice.store) as (cluster, _):
        for number in (signal.SIGTERM, signal.SIGINT):  # after Ray has set its own
            signal.signal(number, lambda *_: stop.set())
        has_accelerators = any(kind.processor == "cuda" for kind in cluster.kinds)
        settings = dataclasses.replace(settings, accelerators=1.0 if has_accelerators else 0.0)
        replan = None
        if promise is not None:
            curve = measure_server(load, schema, threads=settings.threads).curve
            planner = ServingPlanner(promise, offers_here(curve, devices=len(cluster.devices)))
            plan = planner.first()
            said(str(dataclasses.replace(plan, price=0.0)))
            settings, replan = settings.apply_plan(plan), planner.replan
        serve_on_ray(
            load,
            schema,
            host=host,
            port=port,
            about=about,
            settings=settings,
            stop=stop,
            replan=replan,
            said=said,
        )


def _check_host(host: str, token: str) -> None:
    if host not in LOOPBACK and not token:
        raise DovetailError(
            f"a server that others than this machine reach, at {host}, must have a token: put one into a file of yours "
            f"and give it by --token-file."
        )


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
    retrain: RowTraining | None = None,
    said: Callable[[str], None] = print,
) -> None:
    """Serve until it is stopped. Whoever listens to others than this machine must have a token. With a `promise`,
    replicas, rows of a call and the wait are planned by what calls take here, and planned again as the rate changes.
    Rows in which a drift is seen are given to `retrain`."""
    _check_host(host, token)
    listener = listen(host, port)
    load, about = choice.choose()
    said(str(about.get("cascade", about["model"])))
    schema, replan = None, None
    if promise is not None:
        schema = choice.schema()
        cores = len(os.sched_getaffinity(0)) if best_device() == "cpu" else math.inf
        measured = measure_server(load, schema, threads=threads, cores=cores)
        planner = ServingPlanner(promise, offers_here(measured.curve), front=measured.front)
        plan = planner.first()
        said(str(dataclasses.replace(plan, price=0.0)))  # nobody pays for the devices of this machine
        group = plan.groups[0]
        replicas, wait_seconds = group.count, plan.wait_seconds
        choice = dataclasses.replace(choice, batch_rows=group.batch_rows)
        replan = planner.replan
    run_loop(
        serve_model(
            load,
            lambda: (schema or choice.schema(), choice.reference()),
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
            retrain=retrain,
            said=said,
        )
    )
