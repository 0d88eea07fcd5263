"""A search as a value: a program, a space of parameters, and how new tasks are asked for. Knows nothing of Optuna,
whose samplers and pruners are held as they are."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dovetail.describe import programs, spaces
from dovetail.describe.sweeps import Named, check_value, task_name
from dovetail.vocabulary import (
    Halving,
    InvalidWorkload,
    Population,
    Program,
    Stop,
    Task,
    Workload,
    parse_device_memory,
)
from dovetail.vocabulary.work import suggest_goal

SAMPLERS = ("tpe", "random", "population")
PRUNERS = ("asha", "halving", "median")
# Where a name says how to halve, tasks are judged after a ninth and a third of their steps.
_FACTOR, _RUNGS = 3, 2
# As many generations a population has where only its name is given.
_GENERATIONS = 10


@dataclasses.dataclass(frozen=True, slots=True)
class Search:
    """A search for the parameters with which a program does best: tasks are asked for as the results of others come.
    `dt.run` and `dovetail run` carry it out; `dt.search` does both.

    - `space` says for each parameter where it comes from: `dt.uniform`, `dt.log_uniform`, `dt.integers`, `dt.choice`, a
      list, an Optuna distribution; one value stays as it is, and `dt.when` gives a parameter to some tasks alone. Or it
      is a function of an Optuna trial that gives the parameters of a task.
    - `metric` is what a task is judged by, as its evaluation reports it; `goal` says "max" or "min" where its name does
      not.
    - `sampler` is one of Optuna's, or "tpe" (without one), "random", "population", or a `dt.Population`.
    - `pruner` is one of Optuna's, or "asha", "halving", "median", or a `dt.Halving`.
    - `count` is how many trials there are in all; of a population, how many tasks there are at a time.
    - `at_once` is how many tasks are asked for at a time; without it, as many as keep the devices busy.
    - Each task trains for `steps` or `epochs`, or until `metric` is `at_least` or `at_most` so much, which ends the
      search, or has not improved for `patience` evaluations.
    - `objective`, `techniques`, `device_memory` and `allow` are as in `dt.workload`. Without an objective, plans
      have all tasks end soon, or, where the search has a target, one that meets it.

    >>> search = Search("dovetail.vocabulary.units:show_bytes", {"count": spaces.integers(1, 64)}, metric="accuracy",
    ...                 steps=100, count=20)
    >>> search.goal, search.task(3, {"count": 7}).name
    ('max', 'show_bytes #3 count=7')
    """

    program: Named | Program
    space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]
    _: dataclasses.KW_ONLY
    metric: str
    goal: str | None = None
    sampler: Any = None
    pruner: Any = None
    count: int = 100
    at_once: int | None = None
    steps: int | None = None
    epochs: int | None = None
    at_least: float | None = None
    at_most: float | None = None
    patience: int | None = None
    name: str = ""
    objective: str = ""
    techniques: str | Iterable[str] = ()
    device_memory: str | int | None = None
    allow: str | Iterable[str] = ()

    def __post_init__(self) -> None:
        for what in ("count", "at_once"):
            given = getattr(self, what)
            if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
                raise InvalidWorkload(f"a search must have {what} of at least 1, got {given!r}.")
        self._settle_goal()
        given, found = self.program, programs.program(self.program)
        if isinstance(self.space, Mapping):
            self._check_space(given, found)
        elif not callable(self.space):
            raise InvalidWorkload(
                f"a search's space must be a dict of parameters or a function of a trial, got {self.space!r}."
            )
        object.__setattr__(self, "program", found)
        self._settle_rules()
        self.stop, self.workload()  # they refuse what cannot be

    def _settle_goal(self) -> None:
        implied = "max" if self.at_least is not None else "min" if self.at_most is not None else None
        goal = self.goal or implied or suggest_goal(self.metric)
        if goal not in ("max", "min"):
            raise InvalidWorkload(
                f"a search must know whether more of {self.metric!r} is better; its name does not say. Give goal='max' "
                f"or goal='min'."
                if self.goal is None
                else f"a search's goal must be 'max' or 'min', got {self.goal!r}."
            )
        object.__setattr__(self, "goal", goal)

    def _check_space(self, given: Named | Program, found: Program) -> None:
        assert isinstance(self.space, Mapping)
        if not self.space:
            raise InvalidWorkload("a search's space must have at least one parameter, got none.")
        spaces.check_conditions(self.space)
        if callable(given):
            programs.check_parameters(given, dict.fromkeys(self.space, 0), name=found.function)
        else:
            programs.check_names(found, self.space)
        for key, value in self.space.items():
            if not is_drawn(value):
                check_value(key, value)

    def _settle_rules(self) -> None:
        """Names of samplers and pruners that are ours become what they stand for."""
        if self.sampler == "population":
            every = max(1, self._steps("sampler='population'", "dt.Population(every_steps=...)") // _GENERATIONS)
            object.__setattr__(self, "sampler", Population(every_steps=every))
        if self.pruner in ("asha", "halving"):
            steps = self._steps(f"pruner={self.pruner!r}", "dt.Halving(metric=..., first_steps=...)")
            first, is_asha = max(1, steps // _FACTOR**_RUNGS), self.pruner == "asha"
            rule = Halving(
                metric=self.metric, first_steps=first, factor=_FACTOR, goal=self.goal or "", asynchronous=is_asha
            )
            object.__setattr__(self, "pruner", rule)
        for what, names in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            given = getattr(self, what)
            if isinstance(given, str) and given not in names:
                raise InvalidWorkload(
                    f"a search's {what} must be one of {', '.join(names)}, or an object of Optuna's, got {given!r}."
                )
        if isinstance(self.pruner, Halving) and (self.pruner.metric, self.pruner.goal) != (self.metric, self.goal):
            raise InvalidWorkload(
                f"a search must halve by what it searches for, {self.metric!r} ({self.goal}), got "
                f"{self.pruner.metric!r} ({self.pruner.goal})."
            )
        if isinstance(self.sampler, Population) and (self.pruner is not None or self.count < 2):
            raise InvalidWorkload(
                f"a population must have a count of at least 2 and no pruner, for it ends its worst by itself, got "
                f"count={self.count} and pruner={self.pruner!r}."
            )

    def _steps(self, given: str, instead: str) -> int:
        if self.steps is None:
            raise InvalidWorkload(f"{given} must go with steps=..., of which it takes a part. Give {instead} instead.")
        return self.steps

    @property
    def stop(self) -> Stop:
        """The condition at which each task of this search is done."""
        has_end = self.at_least is not None or self.at_most is not None or self.patience is not None
        judged = {"metric": self.metric, "goal": self.goal} if has_end else {}
        return Stop(
            steps=self.steps,
            epochs=self.epochs,
            at_least=self.at_least,
            at_most=self.at_most,
            patience=self.patience,
            **judged,
        )

    def workload(self, tasks: Iterable[Task] = ()) -> Workload:
        """The open workload of a search that has asked for these tasks so far."""
        assert isinstance(self.program, Program)
        return Workload(
            name=self.name or self.program.function,
            tasks=tuple(tasks),
            open=True,
            # As far as anybody knows, each of them may be the one that meets the target.
            objective=self.objective
            or (f"target:chance={1 / (self.count + 1):.6g}" if self.stop.has_target else "makespan"),
            halving=self.pruner if isinstance(self.pruner, Halving) else None,
            population=self.sampler if isinstance(self.sampler, Population) else None,
            techniques=self.techniques,  # type: ignore[arg-type]  # parsed there
            device_memory_bytes=parse_device_memory(self.device_memory),
            allow=self.allow,  # type: ignore[arg-type]  # parsed there
        )

    def task(
        self, number: int, parameters: Mapping[str, Any], *, begins_with: str = "", stop: Stop | None = None
    ) -> Task:
        """The task of a trial with these parameters."""
        assert isinstance(self.program, Program)
        if not isinstance(self.space, Mapping):
            programs.check_names(self.program, parameters)
        for key, value in parameters.items():
            check_value(key, value)
        fixed = (
            {key for key, value in self.space.items() if not is_drawn(value)} if isinstance(self.space, Mapping) else ()
        )
        chosen = {key: value for key, value in parameters.items() if key not in fixed}
        return Task(
            name=task_name(self.program, {"": number} | chosen),
            program=self.program,
            parameters=parameters,
            stop=stop or self.stop,
            begins_with=begins_with,
        )


def is_drawn(value: Any) -> bool:
    """Whether a parameter of a space is drawn, and not fixed.

    >>> is_drawn(spaces.uniform(0, 1)), is_drawn([1, 2]), is_drawn(0.5)
    (True, True, False)
    """
    is_of_optuna = type(value).__module__.startswith("optuna.")
    return is_of_optuna or isinstance(value, spaces.Distribution | spaces.Conditional) or spaces.axis(value) is not None
