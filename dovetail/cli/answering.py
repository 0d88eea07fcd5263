"""What all commands share: their common options, how refusals are told, exit codes.

Exit codes: 0 all is well; 1 some task failed; 2 the input cannot be; 3 another controller holds the store;
130 stopped before the end, run again to go on.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dovetail.vocabulary import DovetailError, Entity, StoreBusy
from dovetail.vocabulary.redact import Redactor
from dovetail.vocabulary.units import parse_seconds
from dovetail.vocabulary.user_text import escape_controls, shorten

EngineOption = Annotated[str, typer.Option(help="Where tasks run: local, on this machine; or ray, on a Ray cluster.")]
AddressOption = Annotated[
    str,
    typer.Option(
        help="Address of the Ray cluster: host:port; auto: the one that this machine belongs to; local: start one here."
    ),
]
StoreOption = Annotated[
    Path, typer.Option("--store", help="The folder that holds a run's events, checkpoints and logs.")
]
SortOption = Annotated[
    str | None,
    typer.Option(
        "--sort",
        help="Sort rows by a column, a parameter or a metric; with a minus in front, largest first: -accuracy.",
    ),
]
MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics", help="Metrics to show as columns: accuracy,train/loss; or all of them: all. May be repeated."
    ),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV, with a column for every parameter and metric.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
ExactOption = Annotated[
    bool,
    typer.Option(
        "--exact",
        help="Use only techniques that train as each task alone does, bit by bit; on CUDA by deterministic algorithms.",
    ),
]
TechniquesOption = Annotated[
    str | None,
    typer.Option(
        help="Ways to run tasks on devices: use only these, resident,spill; or any but these, -fuse,-replicate."
    ),
]
DeviceMemoryOption = Annotated[
    str | None, typer.Option(help="Plan and run as if each accelerator had no more memory than this: 24GiB.")
]
AllowOption = Annotated[
    str | None,
    typer.Option(
        help="Approximations with which tasks may be trained where that is faster or nothing else fits: state-8bit "
        "(others: docs/numeric.md). "
        "Without a name nothing is approximated."
    ),
]
HOME = Path(".dovetail")

FAILED, INVALID, BUSY, STOPPED = 1, 2, 3, 130
# Of one message: an error may name every task there is.
_MOST_SAID = 100_000


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """What Dovetail refuses becomes one line on the error stream and an exit code."""
    try:
        yield
    except DovetailError as error:
        say(f"dovetail: {error}", err=True)
        raise typer.Exit(BUSY if isinstance(error, StoreBusy) else INVALID) from None
    except KeyboardInterrupt:
        typer.echo("dovetail: ended at once; what was saved is safe.", err=True)
        raise typer.Exit(STOPPED) from None
    except BrokenPipeError:
        sys.exit(0)


def say(text: object, *, err: bool = False) -> None:
    """Print a line, or lines, for people: with no secrets, and nothing that would steer a terminal."""
    typer.echo(escape_controls(shorten(Redactor(variables=os.environ)(str(text)), most=_MOST_SAID)), err=err)


def ask_controller(store: Path, request: dict[str, Any]) -> Mapping[str, Any]:
    """The answer of the store's controller; what it refuses is raised."""
    from dovetail.verbs.client import Client

    return Client(store).ask(request)


def duration(text: str, option: str) -> float:
    """Seconds of an option.

    >>> duration("10min", "--move")
    600.0
    """
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise DovetailError(f"{option}: {error}") from None


def entities(given: list[str] | None) -> tuple[Entity, ...]:
    """What `--entity` says: what each weighs, and that the tasks of some go by first come.

    >>> [(one.name, one.weight, one.inside) for one in entities(["vision=2", "speech=1:first_come"])]
    [('vision', 2.0, 'fairness'), ('speech', 1.0, 'first_come')]
    """
    split = [text.partition(":") for text in given or []]
    weights = figures([text for text, _, _ in split], "--entity", "vision=2")
    ways = {text.rpartition("=")[0]: inside for text, _, inside in split}
    return tuple(Entity(name=n, weight=weight, inside=ways[n] or "fairness") for n, weight in weights.items())


def figures(given: list[str], option: str, example: str, *, read: Callable[[str], float] = float) -> dict[str, float]:
    """What an option says that was given as names and numbers, as in `--price a100=2.50`.

    >>> figures(["a100=2.50"], "--price", "a100=2.50")
    {'a100': 2.5}
    """
    found = {}
    for text in given:
        name, equals, figure = text.rpartition("=")
        try:
            found[name] = read(figure)
        except ValueError:
            equals = ""
        if not (name and equals):
            raise DovetailError(f"{option} must be a name and a number, as in {option} {example}, got {text!r}.")
    return found
