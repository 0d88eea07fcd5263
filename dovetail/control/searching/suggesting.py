"""From a search's space to the parameters of one task, through whatever suggests them: an Optuna trial, or a member of
a population."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

from dovetail.describe import Search
from dovetail.describe.searches import is_drawn
from dovetail.describe.spaces import Choice, Conditional, Interval, axis, without_unmet
from dovetail.vocabulary import InvalidWorkload
from dovetail.vocabulary.records import freeze

_PLAIN = (type(None), bool, int, float, str)


class Suggests(Protocol):
    """What Optuna's trials do, as far as spaces ask for it."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int: ...

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


def suggest_parameters(search: Search, trial: Suggests) -> dict[str, Any]:
    """The parameters of a trial's task. Whatever was suggested to the trial before is suggested again, so that asking
    twice changes nothing."""
    if isinstance(search.space, Mapping):
        return _suggest_all(search.space, trial)
    found = search.space(trial)
    if not isinstance(found, Mapping):
        raise InvalidWorkload(
            f"a search's space must be a function that gives the parameters of a task as a dict, got {found!r}. "
            f"End it with: return {{'learning_rate': learning_rate}}."
        )
    return dict(found)


def _suggest_all(space: Mapping[str, Any], trial: Suggests) -> dict[str, Any]:
    """Parameters come after those on which they depend: what a task does not have is not asked for."""
    values: dict[str, Any] = {}
    ahead, unmet = dict(space), set[str]()
    while ahead:
        name = next((each for each in ahead if not _waits(ahead[each], ahead)), next(iter(ahead)))
        given = ahead.pop(name)
        if name in without_unmet({**values, name: None}, space):
            values[name] = _suggest(name, given.values if isinstance(given, Conditional) else given, trial)
        else:
            unmet.add(name)
    return {name: values[name] for name in space if name not in unmet}


def _waits(given: Any, ahead: Mapping[str, Any]) -> bool:
    return isinstance(given, Conditional) and any(name in ahead for name in given.conditions)


def _suggest(name: str, given: Any, trial: Suggests) -> Any:
    match given:
        case Interval():
            return _suggest_number(name, given, trial)
        case Choice(weights=weights) if weights and len(set(weights)) > 1:
            raise InvalidWorkload(f"a search's sampler weighs choices by itself; {name!r} must have none of its own.")
        case _ if (values := axis(given)) is not None:
            return _suggest_choice(name, list(values), trial)
        case _ if is_drawn(given):
            return _suggest_as_optuna(name, given, trial)
        case _:
            return given


def _suggest_number(name: str, given: Interval, trial: Suggests) -> float:
    is_whole = isinstance(given.low, int) and isinstance(given.step, int)
    if given.logarithmic and given.step not in (None, 1 if is_whole else None):
        raise InvalidWorkload(
            f"a search draws by orders of magnitude without a step; {name!r} has step {given.step}. Leave one of the "
            f"two out, or give a list."
        )
    if is_whole:
        return trial.suggest_int(
            name, int(given.low), int(given.last), step=int(given.step or 1), log=given.logarithmic
        )
    return trial.suggest_float(name, given.low, given.last, step=given.step, log=given.logarithmic)


def _suggest_choice(name: str, values: list[Any], trial: Suggests) -> Any:
    """Optuna's journal has plain values; others go by how they are written."""
    if all(isinstance(value, _PLAIN) for value in values):
        return trial.suggest_categorical(name, values)
    written = {json.dumps(freeze(value), default=list): value for value in values}
    return written[trial.suggest_categorical(name, list(written))]


def _suggest_as_optuna(name: str, given: Any, trial: Suggests) -> Any:
    match type(given).__name__:
        case "FloatDistribution":
            return trial.suggest_float(name, given.low, given.high, step=given.step, log=given.log)
        case "IntDistribution":
            return trial.suggest_int(name, given.low, given.high, step=given.step, log=given.log)
        case "CategoricalDistribution":
            return trial.suggest_categorical(name, given.choices)
    raise InvalidWorkload(
        f"a search's space must have Optuna's FloatDistribution, IntDistribution or CategoricalDistribution, got "
        f"{given!r} for {name!r}."
    )
