"""Which models of a store answer, and their server."""

import asyncio
import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dovetail.control import Result, TaskResult, open_result
from dovetail.serve.cascades.model_cascade import ModelCascade
from dovetail.serve.server.model_server import LOOPBACK, listen, serve_model
from dovetail.serve.server.schema import Schema
from dovetail.serve.server.served_model import ServedModel, best_device, inputs_of
from dovetail.train.build import build
from dovetail.verbs.make_cascade import cascade
from dovetail.vocabulary import DovetailError


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
    model = result[last].model()
    if not stages:
        return ServedModel(model.to(device), schema, device)
    before = [(name, result[name].model(), threshold) for name, threshold in stages]
    return ServedModel(ModelCascade(before, (last, model), device=torch.device(device)), schema, device)


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
    said: Callable[[str], None] = print,
) -> None:
    """Serve until it is stopped. Whoever listens to others than this machine must have a token."""
    if host not in LOOPBACK and not token:
        raise DovetailError(
            f"a server that others than this machine reach, at {host}, must have a token: put one into a file of yours "
            f"and give it by --token-file."
        )
    listener = listen(host, port)
    load, about = choice.choose()
    said(str(about.get("cascade", about["model"])))
    asyncio.run(
        serve_model(
            load,
            choice.schema(),
            listener,
            choose=choice.choose,
            about=about,
            replicas=replicas,
            threads=threads,
            batch_rows=choice.batch_rows,
            wait_seconds=wait_seconds,
            within=within,
            token=token,
            said=said,
        )
    )
