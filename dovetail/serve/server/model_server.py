"""A model server as a process: a port, replicas, and an orderly end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dovetail.planning.serving import ServingPlan
from dovetail.serve.server.batching import RequestQueue
from dovetail.serve.server.replica import Answering
from dovetail.serve.server.replica_pool import ReplicaPool
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

if TYPE_CHECKING:
    from starlette.applications import Starlette

LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DRAIN_SECONDS = 30
# How often it is asked whether the plan still fits the rate of requests.
_RATE_SECONDS = 10.0


def listen(host: str, port: int) -> socket.socket:
    """A socket on the port, or on any free one for 0. Raises `DovetailError` where it is taken."""
    try:
        found = socket.create_server((host, port), backlog=2048)
    except OSError as error:
        raise DovetailError(f"port {port} of {host} must be free; found: {error}. Give another by --port.") from error
    # asyncio does this for sockets that say they are TCP, and these do not: answers would wait 40 ms for a receipt.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


async def serve_model(
    load: Callable[[], Answering],
    schema: Schema,
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
    said: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT: then nothing more is taken, and what was taken is answered. `choose` says which
    model is to answer now, when a reload is asked for; `replan` is asked where requests come at another rate, and says
    with what they are answered from then on, or None where nothing changes."""
    from dovetail.serve.server.model_app import ModelApp

    queue = RequestQueue(batch_rows=batch_rows, wait_seconds=wait_seconds)
    pool = ReplicaPool(load, queue=queue, replicas=replicas, threads=threads)
    now = dict(about or {})

    async def reload() -> str:
        assert choose is not None
        found, said_now = await asyncio.to_thread(choose)
        await pool.swap(found)
        now.update(said_now)
        return str(now.get("model", ""))

    await pool.start()
    app = ModelApp(
        pool, queue, schema, within=within, token=token, reload=reload if choose else None, about=lambda: now
    )
    said(f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}/predict")
    watching = asyncio.create_task(_watch_rate(queue, pool, replan, said)) if replan else None
    try:
        await serve_until_signal(app.app, listener)
    finally:
        if watching is not None:
            watching.cancel()
        await pool.close()


async def serve_until_signal(app: "Starlette", listener: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT: then nothing more is taken, and what was taken is answered."""
    import uvicorn

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=_DRAIN_SECONDS, lifespan="off"
    )
    server = uvicorn.Server(config)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: setattr(server, "should_exit", True))
    # An end that was asked for is no failure: uvicorn would raise the signal once more when all is done.
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]
    await server.serve(sockets=[listener])


async def _watch_rate(
    queue: RequestQueue,
    pool: ReplicaPool,
    replan: Callable[[float], ServingPlan | None],
    said: Callable[[str], None],
) -> None:
    """Plan again as the rate of requests changes; a plan that cannot be is told, and nothing changes."""
    before = queue.asked
    while True:
        await asyncio.sleep(_RATE_SECONDS)
        asked, before = queue.asked - before, queue.asked
        try:
            plan = await asyncio.to_thread(replan, asked / _RATE_SECONDS)
        except DovetailError as error:
            said(str(error))
            continue
        if plan is not None:
            said(f"at {asked / _RATE_SECONDS:.3g} a second {plan}")
            queue.batch_rows, queue.wait_seconds = plan.groups[0].batch_rows, plan.wait_seconds
            await pool.resize(plan.groups[0].count)
