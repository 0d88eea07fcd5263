"""The same server as deployments of Ray Serve: each replica has the queue, the batches, the refusals and the watch of a
server of its own, and Ray Serve's proxies share requests out among them. One actor hears from all replicas how much is
asked, and tells them how to answer. Ray is imported only when it is used."""

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dovetail.engines.ray.connection import installed, installed_serve
from dovetail.planning.serving import ServingPlan
from dovetail.serve.server.rate_meter import RATE_SECONDS, RateMeter
from dovetail.serve.server.replica import Answering
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from dovetail.serve.server.batching import RequestQueue

# Requests that a replica has at most: more than its queue takes, so that the queue decides.
_MOST_AT_ONCE = 10_000
_NAME = "dovetail"
# How often a replica says how much it was asked, and hears how to answer.
_REPORT_SECONDS = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeploymentSettings:
    """How each replica answers, and on what."""

    replicas: int = 1
    threads: int = 1
    accelerators: float = 0.0
    batch_rows: int = 32
    wait_seconds: float = 0.002
    within: float = 1.0
    token: str = ""

    def apply_plan(self, plan: ServingPlan) -> "DeploymentSettings":
        """The same, with the replicas, the rows of a call and the wait of a plan."""
        group = plan.groups[0]
        return dataclasses.replace(
            self, replicas=group.count, batch_rows=group.batch_rows, wait_seconds=plan.wait_seconds
        )


class RequestTally:
    """An actor: what all replicas were asked, and the rows of a call and the wait that they are to have.

    >>> tally = RequestTally(32, 0.002)
    >>> tally.report(5), tally.report(2), tally.count_requests()
    ((32, 0.002), (32, 0.002), 7)
    """

    def __init__(self, batch_rows: int, wait_seconds: float) -> None:
        self._asked, self._answering = 0, (batch_rows, wait_seconds)

    def report(self, asked: int) -> tuple[int, float]:
        """Add what a replica was asked since its last report; gives the rows of a call and the wait to use."""
        self._asked += asked
        return self._answering

    def count_requests(self) -> int:
        """How many requests all replicas together have been sent so far."""
        return self._asked

    def answer_with(self, batch_rows: int, wait_seconds: float) -> None:
        """From now on tell replicas to answer with so many rows a call, waiting so long for more."""
        self._answering = (batch_rows, wait_seconds)


class ModelDeployment:
    """What Ray Serve has on a node for each replica: a queue, and a process with the model."""

    async def __init__(  # type: ignore[misc]  # Ray Serve waits for it
        self,
        load: Callable[[], Answering],
        schema: Schema,
        about: dict[str, Any],
        settings: DeploymentSettings,
        tally: Any,
    ) -> None:
        from dovetail.serve.server.batching import RequestQueue
        from dovetail.serve.server.model_app import ModelApp
        from dovetail.serve.server.replica_pool import ReplicaPool

        queue = RequestQueue(batch_rows=settings.batch_rows, wait_seconds=settings.wait_seconds)
        self._pool = ReplicaPool(load, queue=queue, threads=settings.threads)
        await self._pool.start()
        self._app = ModelApp(
            self._pool, queue, schema, within=settings.within, token=settings.token, about=lambda: about
        )
        self._reporting = asyncio.create_task(_report(queue, tally))

    async def __call__(self, request: "Request") -> "Response":
        """The answer to an HTTP request, which Ray Serve has sent to this replica."""
        return await self._app.respond(request)


async def _report(queue: "RequestQueue", tally: Any) -> None:
    """What the queue was asked, again and again; how it answers is what it is told. A tally that is lost with its node
    is started again elsewhere, and told then."""
    told, lost = 0, installed().exceptions.RayError
    while True:
        await asyncio.sleep(_REPORT_SECONDS)
        asked = queue.asked
        with contextlib.suppress(lost):
            queue.batch_rows, queue.wait_seconds = await tally.report.remote(asked - told)
            told = asked


def serve_on_ray(
    load: Callable[[], Answering],
    schema: Schema,
    *,
    host: str,
    port: int,
    about: dict[str, Any],
    settings: DeploymentSettings,
    stop: threading.Event,
    replan: Callable[[float], ServingPlan | None] | None = None,
    said: Callable[[str], None] = print,
) -> None:
    """Serve on the Ray cluster that this process is connected to, until `stop`; then what was taken is answered.
    `replan` is asked where requests come at another rate, and says with what they are answered from then on: rows and
    wait are told to the replicas there are, another number of them is Ray Serve's rolling update."""
    ray, serve = installed(), installed_serve()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    tally = ray.remote(num_cpus=0, max_restarts=-1)(RequestTally).remote(settings.batch_rows, settings.wait_seconds)

    def deploy(settings: DeploymentSettings, *, wait: bool = False) -> None:
        deployment = serve.deployment(
            num_replicas=settings.replicas,
            ray_actor_options={"num_cpus": settings.threads, "num_gpus": settings.accelerators},
            max_ongoing_requests=_MOST_AT_ONCE,
        )(ModelDeployment)
        target = serve.api.RunTarget(
            deployment.bind(load, schema, about, settings, tally), name=_NAME, route_prefix="/"
        )
        # Replicas for which there is no room would be waited for without end, and so would a stop.
        serve.run_many([target], wait_for_applications_running=wait)

    reached = {"host": host, "port": port, "location": "EveryNode"}
    serve.start(http_options=reached, logging_config={"log_level": "ERROR"})
    try:
        deploy(settings, wait=True)
        said(f"http://{host}:{port}/predict")
        if replan is None:
            stop.wait()
        else:
            _keep_planning(replan, tally, settings, deploy, stop, said)
        serve.delete(_NAME)
    finally:
        serve.shutdown()


def _keep_planning(
    replan: Callable[[float], ServingPlan | None],
    tally: Any,
    settings: DeploymentSettings,
    deploy: Callable[[DeploymentSettings], None],
    stop: threading.Event,
    said: Callable[[str], None],
) -> None:
    """Plan again as the rate of requests changes; a plan that cannot be is told, and nothing changes."""
    ray, meter = installed(), RateMeter()
    while not stop.wait(RATE_SECONDS):
        try:
            rate = meter.rate(ray.get(tally.count_requests.remote()))
            plan = replan(rate)
            if plan is None:
                continue
            said(f"at {rate:.3g} a second {dataclasses.replace(plan, price=0.0)}")
            changed = settings.apply_plan(plan)
            ray.get(tally.answer_with.remote(changed.batch_rows, changed.wait_seconds))
            if changed.replicas != settings.replicas:
                deploy(changed)
            settings = changed
        except (DovetailError, ray.exceptions.RayError, RuntimeError) as error:
            said(str(error))
