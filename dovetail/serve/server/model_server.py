"""A model server as a process: a port, replicas, and an orderly end."""

import asyncio
import contextlib
import functools
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy

from dovetail.planning.serving import ServingPlan
from dovetail.serve.server.batching import Overloaded, RequestQueue
from dovetail.serve.server.latest_rows import Rows
from dovetail.serve.server.rate_meter import RATE_SECONDS, RateMeter
from dovetail.serve.server.replica import Answered, Answering, freeze_loaded
from dovetail.serve.server.replica_pool import ReplicaPool
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from dovetail.serve.server.answer_watch import AnswerWatch

T = TypeVar("T")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DRAIN_SECONDS = 30
# How long a call of rows that were held out may wait.
_REFERENCE_SECONDS = 5.0
_SWITCH_SECONDS = 0.0005


def listen(host: str, port: int) -> socket.socket:
    """A socket on the port, or on any free one for 0. Raises `DovetailError` where it is taken."""
    try:
        found = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise DovetailError(f"port {port} of {host} must be free; found: {error}. Give another by --port.") from error
    # asyncio does this for sockets that say they are TCP, and these do not: answers would wait 40 ms for a receipt.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def run_loop(serving: Coroutine[Any, Any, T]) -> T:
    """Run to the end, by the quickest loop that is installed, which waits for the interpreter's lock for no longer than
    a tenth of what Python has other threads keep it: one of them looks for drift while requests come."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        # In a notebook a loop is running already, and a thread has one at most.
        with ThreadPoolExecutor(1) if _has_loop() else contextlib.nullcontext() as beside:
            return beside.submit(_quickest_run, serving).result() if beside else _quickest_run(serving)
    finally:
        sys.setswitchinterval(before)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _quickest_run(serving: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:  # not on Windows
        return asyncio.run(serving)
    return uvloop.run(serving)


Reference = tuple[list[numpy.ndarray], numpy.ndarray]
"""Rows with the class of each."""


async def serve_model(
    load: Callable[[], Answering],
    describe: Callable[[], tuple[Schema, Reference | None]],
    listener: socket.socket,
    *,
    choose: Callable[[], tuple[Callable[[], Answering], dict[str, Any]]] | None = None,
    about: dict[str, Any] | None = None,
    replicas: int = 1,
    threads: int = 1,
    batch_rows: int = 32,
    wait_seconds: float = 0.002,
    within: float = 1.0,
    token: str = "",
    replan: Callable[[float], ServingPlan | None] | None = None,
    retrain: Callable[[Mapping[str, Any], str, Rows, str], str] | None = None,
    said: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT: then nothing more is taken, and what was taken is answered. `choose` says which
    model is to answer now, when a reload is asked for; `replan` is asked where requests come at another rate, and says
    with what they are answered from then on, or None where nothing changes. `describe` says, while replicas load, what
    the model takes, and gives rows that were held out, if there are any, with the class of each: what comes later is
    compared with them, or else with the first rows that come. `retrain` is called once where these differ (see
    `Retrain`), with what `choose` said of the model that answers."""
    from dovetail.serve.server.answer_watch import AnswerWatch, load_libraries
    from dovetail.serve.server.model_app import ModelApp

    queue = RequestQueue(batch_rows=batch_rows, wait_seconds=wait_seconds)
    pool = ReplicaPool(load, queue=queue, replicas=replicas, threads=threads)
    now = dict(about or {})
    starting = asyncio.create_task(pool.start())
    await asyncio.sleep(0)  # it starts processes first, which load while this one finds out what they take
    try:
        schema, reference = describe()
    except BaseException:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        raise
    watch = AnswerWatch(schema, said=said, retrain=functools.partial(retrain, now) if retrain else None)

    async def reload() -> str:
        assert choose is not None
        found, said_now = await asyncio.to_thread(choose)
        await pool.swap(found)
        now.update(said_now)
        watch.forget()
        if reference is not None:
            await _refer(watch, queue, *reference)
        return str(now.get("model", ""))

    await asyncio.gather(starting, asyncio.to_thread(load_libraries))
    freeze_loaded()
    app = ModelApp(
        pool,
        queue,
        schema,
        within=within,
        token=token,
        reload=reload if choose else None,
        about=lambda: now,
        watch=watch,
    )
    said(f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}/predict")
    beside = [asyncio.create_task(watch.keep_looking())]
    if reference is not None:
        beside.append(asyncio.create_task(_refer(watch, queue, *reference)))
    if replan is not None:
        beside.append(asyncio.create_task(_watch_rate(queue, pool, replan, said)))
    try:
        await serve_until_signal(app, listener)
    finally:
        for each in beside:
            each.cancel()
        await pool.close()


def http_server(app: "ASGIApp") -> "uvicorn.Server":
    """What serves an application; whoever starts it ends it, by `should_exit`."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        lifespan="off",
        ws="none",
        proxy_headers=False,  # nothing here asks where a request came from
    )
    server = uvicorn.Server(config)
    # An end that was asked for is no failure: uvicorn would raise the signal once more when all is done.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]
    return server


async def serve_until_signal(app: "ASGIApp", listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT: then nothing more is taken, and what was taken is answered."""
    server = http_server(app)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    await server.serve(sockets=[listener])


async def _refer(watch: "AnswerWatch", queue: RequestQueue, arrays: list[numpy.ndarray], labels: numpy.ndarray) -> None:
    """Have rows that were held out answered, between the others, and compare with them from then on."""
    parts: list[Answered] = []
    for at in range(0, len(labels), queue.batch_rows):
        part = [array[at : at + queue.batch_rows] for array in arrays]
        while len(parts) * queue.batch_rows <= at:
            try:
                parts.append(await queue.ask(part, within=_REFERENCE_SECONDS))
            except (Overloaded, TimeoutError):  # others go first
                await asyncio.sleep(_REFERENCE_SECONDS)
    stages = [part.stages for part in parts if part.stages is not None]
    found = Answered(numpy.concatenate([part.scores for part in parts]), numpy.concatenate(stages) if stages else None)
    await asyncio.to_thread(watch.set_reference, arrays, found, labels)


async def _watch_rate(
    queue: RequestQueue,
    pool: ReplicaPool,
    replan: Callable[[float], ServingPlan | None],
    said: Callable[[str], None],
) -> None:
    """Plan again as the rate of requests changes; a plan that cannot be is told, and nothing changes."""
    meter = RateMeter(queue.asked)
    while True:
        await asyncio.sleep(RATE_SECONDS)
        rate = meter.rate(queue.asked)
        try:
            plan = await asyncio.to_thread(replan, rate)
        except DovetailError as error:
            said(str(error))
            continue
        if plan is not None:
            said(f"at {rate:.3g} a second {plan}")
            queue.batch_rows, queue.wait_seconds = plan.groups[0].batch_rows, plan.wait_seconds
            await pool.resize(plan.groups[0].count)
