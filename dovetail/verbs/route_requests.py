"""`dovetail route`: the gateway as a process, and what it learns from."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from dovetail.serve.gateway.models_file import read_models
from dovetail.serve.gateway.outcome_log import OutcomeLog
from dovetail.serve.gateway.routing_policy import RoutingPolicy
from dovetail.serve.routing.outcome_table import OutcomeTable
from dovetail.serve.server.model_server import LOOPBACK, listen, run_loop, serve_until_signal
from dovetail.vocabulary import DovetailError


def route_requests(
    models: Path,
    *,
    outcomes: Path | None = None,
    record: Path | None = None,
    budget: float | None = None,
    money: float = 0.0,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str = "",
    said: Callable[[str], None] = print,
) -> None:
    """Serve until it is stopped. Whoever listens to others than this machine must have a token."""
    if host not in LOOPBACK and not token:
        raise DovetailError(
            f"a gateway that others than this machine reach, at {host}, must have a token: put one into a file of "
            f"yours and give it by --token-file."
        )
    found = read_models(models, os.environ)
    table = read_outcomes(outcomes, record)
    policy = RoutingPolicy(found, outcomes=table, budget=budget, money=money)
    log = OutcomeLog(record, said=said) if record is not None else None
    if policy.router is None:
        said("nothing to learn from yet: models are asked by price and order; judge answers by POST /v1/feedback")
    else:
        said(f"learned from {len(policy.router.table):,} queries; the best single model is {policy.router.best_single}")
        if unknown := [model.name for model in found if model.name not in policy.router.models]:
            said(f"without outcomes, and so asked only by name or where others fail: {', '.join(unknown)}")
    listener = listen(host, port)
    said(f"http://{listener.getsockname()[0]}:{listener.getsockname()[1]}/v1")

    async def serve() -> None:
        import httpx

        from dovetail.serve.gateway.gateway_app import GatewayApp

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        # Addresses are those of the file, whatever a proxy's variable says; and no upstream sends us elsewhere.
        async with httpx.AsyncClient(limits=limits, trust_env=False, follow_redirects=False) as client:
            app = GatewayApp(found, policy, client, token=token, log=log)
            writing = asyncio.create_task(log.keep_writing()) if log is not None else None
            try:
                await serve_until_signal(app.app, listener)
            finally:
                if writing is not None:
                    writing.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await writing

    run_loop(serve())


def read_outcomes(outcomes: Path | None, record: Path | None) -> OutcomeTable | None:
    """What to learn from: the table that was named, or what was recorded and judged before, where that is enough."""
    if outcomes is not None:
        return OutcomeTable.read(outcomes).keep_judged()
    if record is None or not record.is_dir() or not any(record.glob("*.parquet")):
        return None
    table = OutcomeTable.read(record)
    return table.keep_judged() if table.can_be_learned() else None
