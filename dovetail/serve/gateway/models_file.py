"""The models behind a gateway, as a TOML file names them.

    [models.small]
    url = "http://localhost:8001/v1"
    model = "qwen3-4b"          # its name there; without it, its name here
    key_variable = "SMALL_KEY"  # the variable of the environment that holds its key
    price_in = 0.15             # of a million tokens
    price_out = 0.60
    timeout = "60s"
    at_once = 32
    samples = 1                 # answers that are asked for at once, where their agreement is to tell how good they are

Keys are read from the environment, and never written anywhere.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dovetail.vocabulary import DovetailError
from dovetail.vocabulary.units import parse_seconds

AUTO = "auto"
"""The name by which a client leaves the choice to the gateway."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpstreamModel:
    """A model behind the gateway. Its `repr` shows neither its address nor its key: both may hold a secret."""

    name: str
    url: str = dataclasses.field(repr=False)
    model: str
    key: str = dataclasses.field(default="", repr=False)
    price_in: float
    price_out: float
    timeout_seconds: float = 60.0
    at_once: int = 32
    samples: int = 1

    def price(self, tokens_in: float, tokens_out: float) -> float:
        """What a call takes.

        >>> UpstreamModel(name="a", url="", model="a", price_in=1.0, price_out=2.0).price(500_000, 250_000)
        1.0
        """
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


def read_models(path: Path, environment: Mapping[str, str]) -> tuple[UpstreamModel, ...]:
    """The models of a file, in its order."""
    try:
        found = tomllib.loads(path.read_text())
    except OSError as error:
        raise DovetailError(f"the models must be in a TOML file; {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DovetailError(f"{path} must be TOML; {error}.") from None
    models = found.get("models")
    if not isinstance(models, dict) or not models or not all(isinstance(one, dict) for one in models.values()):
        raise DovetailError(f"{path} must name its models as [models.NAME], each with a url; it names none.")
    return tuple(_model(name, given, environment) for name, given in models.items())


_MOST_SAMPLES = 64
_TYPES: dict[str, tuple[type, ...]] = {
    "url": (str,),
    "model": (str,),
    "key_variable": (str,),
    "price_in": (int, float),
    "price_out": (int, float),
    "timeout": (str, int, float),
    "at_once": (int,),
    "samples": (int,),
}


def _model(name: str, given: Mapping[str, Any], environment: Mapping[str, str]) -> UpstreamModel:
    if unknown := sorted(given.keys() - _TYPES):
        raise DovetailError(f"model {name!r} may say {', '.join(_TYPES)}; it says {', '.join(unknown)}, too.")
    if missing := [each for each in ("url", "price_in", "price_out") if each not in given]:
        raise DovetailError(f"model {name!r} must say its {', '.join(missing)}; prices are of a million tokens.")
    for each, value in given.items():
        if not isinstance(value, _TYPES[each]) or isinstance(value, bool):
            wanted = " or ".join(kind.__name__ for kind in _TYPES[each])
            raise DovetailError(f"{each} of model {name!r} must be {wanted}, got {type(value).__name__}.")
    if name == AUTO:
        raise DovetailError(f"no model may be called {AUTO!r}: by that name clients leave the choice to the gateway.")
    parts = urlsplit(given["url"])
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise DovetailError(f"the url of model {name!r} must begin with http:// or https:// and name a host.")
    variable = given.get("key_variable", "")
    if variable and variable not in environment:
        raise DovetailError(f"the key of model {name!r} must be in the variable {variable}, which is not set.")
    try:
        timeout = parse_seconds(given.get("timeout", 60.0))
    except ValueError as error:
        raise DovetailError(f"timeout of model {name!r}: {error}") from None
    numbers = (given["price_in"], given["price_out"])
    if not (min(numbers) >= 0 and max(numbers) < float("inf") and timeout > 0 and given.get("at_once", 1) > 0):
        raise DovetailError(f"prices of model {name!r} must be 0 or more, its timeout and at_once above 0.")
    if not 1 <= given.get("samples", 1) <= _MOST_SAMPLES:
        raise DovetailError(f"samples of model {name!r} must be from 1 to {_MOST_SAMPLES}, got {given['samples']}.")
    return UpstreamModel(
        name=name,
        url=given["url"].rstrip("/"),
        model=given.get("model", name),
        key=environment.get(variable, "") if variable else "",
        price_in=float(given["price_in"]),
        price_out=float(given["price_out"]),
        timeout_seconds=timeout,
        at_once=given.get("at_once", 32),
        samples=given.get("samples", 1),
    )
