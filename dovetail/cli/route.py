"""`dovetail route`: one OpenAI-compatible endpoint in front of many models, until it is stopped."""

import re
from pathlib import Path
from typing import Annotated

import typer

from dovetail.cli.answering import JsonOption, answering, say
from dovetail.cli.serve import read_token
from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.extras import check_installed

app = typer.Typer()


@app.command()
def route(
    models: Annotated[
        Path | None, typer.Argument(help="A TOML file with the models: [models.NAME] with url, price_in, price_out.")
    ] = None,
    outcomes: Annotated[
        Path | None,
        typer.Option(
            help="What to learn from: CSV or Parquet with query, model, quality, price. Without it, what was recorded."
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="A folder to note queries, answers, prices and seconds in, as Parquet.")
    ] = None,
    budget: Annotated[str | None, typer.Option(help="Money that requests may take on average: 2.00/1k.")] = None,
    money: Annotated[
        float, typer.Option(min=0.0, help="Without a budget: the quality that a unit of money must buy.")
    ] = 0.0,
    report: Annotated[
        bool, typer.Option("--report", help="Only show how well routing by --outcomes does, and end.")
    ] = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on; 0 is any free one.")] = 7450,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that a request must carry.", dir_okay=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve one OpenAI-compatible endpoint in front of many models, and choose who answers by quality and price.

    Clients ask for the model 'auto', or for one by its name, at /v1/chat/completions and /v1/completions, streaming
    included; POST /v1/feedback says how good an answer was; /health and /metrics are for those who watch. SIGTERM ends
    it once all that was taken is answered. With --report nothing is served: APGR, CPT and AIQ in five folds.
    """
    with answering():
        if report:
            _report(outcomes or record, as_json=as_json)
            return
        if models is None:
            raise DovetailError("route must be told which models there are: a TOML file; or --report with --outcomes.")
        check_installed("the endpoint", "orjson", "starlette", "uvicorn", "prometheus_client", "httpx", extra="serve")
        from dovetail.verbs.route_requests import route_requests

        route_requests(
            models,
            outcomes=outcomes,
            record=record,
            budget=None if budget is None else read_budget(budget),
            money=money,
            host=host,
            port=port,
            token=read_token(token_file),
            said=say,
        )


def read_budget(text: str) -> float:
    """Money for a request, from money for so many.

    >>> read_budget("2.00/1k"), read_budget("0.5/100"), read_budget("0.01")
    (0.002, 0.005, 0.01)
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(?:/\s*([0-9]+)?(k?))?\s*", text)
    count = float((found[2] or 1) if found else 0) * (1000 if found and found[3] else 1)
    if not found or not count or float(found[1]) <= 0:
        raise DovetailError(f"--budget must be money for so many requests, as in 2.00/1k, got {text!r}.")
    return float(found[1]) / count


def _report(table: Path | None, *, as_json: bool) -> None:
    import dataclasses
    import json

    from rich.table import Table

    from dovetail.serve.routing import route as learn
    from dovetail.verbs.console import Console

    if table is None:
        raise DovetailError("--report must be told what to learn from: --outcomes TABLE.")
    found = learn(table).report()
    if as_json:
        say(json.dumps(dataclasses.asdict(found)))
        return
    rows = found.rows()
    shown = Table(title=f"{found.queries:,} queries, five folds", title_justify="left")
    for column in rows[0]:
        shown.add_column(column)
    for row in rows:
        shown.add_row(*row.values())
    console = Console()
    console.print(shown)
    for name, (quality, price) in found.singles.items():
        console.print(f"{name} alone: quality {quality:.3f}, price {price:.4g} a query", highlight=False, markup=False)
