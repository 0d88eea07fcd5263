"""`dt.select`: which examples of a training teach, found out by students that ordinary tasks train.

Three runs, each a sweep of its own: students that score what they have not seen; students of what each candidate
chooses, judged by examples that were held back; and, where the best candidate is MaxGrad, the one that chooses among
all. What has been found for the same code and the same question is in the store, and is given at once.
"""

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.control import Result, Settings, TaskResult
from dovetail.describe import check_parameters, programs
from dovetail.describe.sweeps import Named
from dovetail.engines import Engine
from dovetail.selection.record import Candidate, Selection, SelectionTrial
from dovetail.verbs.choices import check_name
from dovetail.verbs.console import Console, plain
from dovetail.verbs.controller import ensure_directory
from dovetail.verbs.engine_places import MakeEngine
from dovetail.verbs.run_workload import run
from dovetail.verbs.session import Session
from dovetail.vocabulary import (
    Cluster,
    DovetailError,
    FrozenDict,
    Program,
    Stop,
    Task,
    TrainingError,
    Workload,
    dumps,
    to_json,
)
from dovetail.vocabulary.redact import Redactor

if TYPE_CHECKING:
    from dovetail.selection.choosing import Scores

STUDENTS, SCORING, CHOOSING = "dovetail.selection.student", "scoring_student", "chosen_student"
"""The module of the students' programs, and their names in it."""
STRENGTHS = (0.0, 0.05, 0.1, 0.2, 0.3)
METHODS = ("maxgrad", "el2n", "ccs")
STEPS, ROUNDS, SPLITS = 200, 10, 5
# Raise it whenever the same question has another answer: what stores hold is then passed over.
_FORMAT = 1

Go = Callable[[Workload], Result]
Tell = Callable[[str], None]


def select(
    program: Named,
    *,
    fraction: float,
    method: str | Sequence[str] = "maxgrad",
    strengths: Sequence[float] = STRENGTHS,
    steps: int = STEPS,
    rounds: int = ROUNDS,
    splits: int = SPLITS,
    store: str | Path = ".dovetail",
    cluster: Cluster | None = None,
    engine: str | Engine | MakeEngine = "local",
    address: str = "auto",
    progress: bool = True,
    fresh: bool = False,
    **parameters: Any,
) -> Selection:
    """Choose the examples of a training that teach: at most this `fraction` of them.

    The program's batches are a `DataLoader` or a `dt.feed` over a dataset whose items have numbers, and its loss calls
    its model. `method` is `maxgrad` (fit a student on what is chosen so far, add what it finds hardest, in `rounds`),
    `el2n` (keep the hardest), `ccs` (as many of each degree of hardness), or several of these. Before it chooses, the
    hardest part of the examples is left out, because wrong labels are hard, too; how large a part, one of `strengths`,
    and which method, is chosen on `splits` validation splits of the training's own examples. Where none is better than
    choosing at random by more than chance, random is what is chosen.

    Students are the program's own model, trained by its own loss and optimizer for `steps` steps each. They are tasks
    like any other, planned for all devices there are; stop and call again to go on. What was chosen is in the store:
    the same question is answered at once, until the program is edited, or with `fresh=True`. Other keywords are
    parameters of the program; `seed` is also that of splits and draws.

    >>> select("digits.py:digits", fraction=1.5)
    Traceback (most recent call last):
    dovetail.vocabulary.errors.DovetailError: a fraction must be above 0 and at most 1, got 1.5.
    """
    methods = (method,) if isinstance(method, str) else tuple(method)
    _check(fraction=fraction, methods=methods, strengths=strengths, steps=steps, rounds=rounds, splits=splits)
    found = programs.program(program)
    if callable(program):
        check_parameters(program, parameters, name=found.function)
    question = _Question(
        program=found,
        parameters=FrozenDict(parameters),
        fraction=float(fraction),
        methods=methods,
        strengths=tuple(map(float, strengths)),
        steps=steps,
        rounds=rounds,
        splits=splits,
    )
    # Students read what others have saved, wherever a program may have gone to.
    home = ensure_directory(Path(store).resolve())
    answer = home / "selections" / f"{question.digest()}.json"
    if answer.is_file() and not fresh:
        return Selection.open(answer)
    how = {"cluster": cluster, "progress": progress, "fresh": fresh, "raise_on_failure": False}
    with _running(engine, address=address, store=home, settings=Settings(keep_count=1), **how) as go:
        selection = _answer(question, go, tell=_teller(progress))
    ensure_directory(answer.parent)
    selection.save(answer)
    return selection


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Question:
    """What is asked, and the tasks that answer it."""

    program: Program
    parameters: Mapping[str, Any]
    fraction: float
    methods: tuple[str, ...]
    strengths: tuple[float, ...]
    steps: int
    rounds: int
    splits: int

    @property
    def name(self) -> str:
        return self.program.function

    @property
    def place(self) -> str:
        """The program's file or module, and its function, wherever the project lies."""
        return self.program.reference.rpartition("/")[2]

    def digest(self) -> str:
        """Who asks the same of the same code is given the same answer."""
        asked = [_FORMAT, self.place, self.program.source, sorted(self.parameters.items()), self.fraction, self.methods]
        text = dumps(to_json([*asked, self.strengths, self.steps, self.rounds, self.splits]))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def scoring_tasks(self) -> list[Task]:
        """A student for each split, which scores it."""
        names = [f"{self.name} scores split {held + 1}" for held in range(self.splits)]
        return [self._task(SCORING, name, self.steps, held=held) for held, name in enumerate(names)]

    def trial_tasks(self, candidate: Candidate, scores: Sequence[str]) -> list[Task]:
        """A student for each split, of what the candidate chooses among the others."""
        return [
            self._choosing(candidate, f"{self.name} {candidate} split {held + 1}", scores, held=held)
            for held in range(self.splits)
        ]

    def final_task(self, candidate: Candidate, scores: Sequence[str]) -> Task:
        """The student that chooses among all examples; its last round would only judge it."""
        return self._choosing(candidate, f"{self.name} {candidate} of all", scores, held=None)

    def _choosing(self, candidate: Candidate, name: str, scores: Sequence[str], *, held: int | None) -> Task:
        rounds = self.rounds - (held is None) if candidate.method == "maxgrad" else 1
        return self._task(
            CHOOSING,
            name,
            self.steps * max(1, rounds),
            held=held,
            method=candidate.method,
            strength=candidate.strength,
            fraction=self.fraction,
            rounds=self.rounds,
            scores=list(scores),
        )

    def _task(self, student: str, name: str, last_step: int, **more: Any) -> Task:
        return Task(
            name=name,
            program=programs.program(f"{STUDENTS}:{student}"),
            parameters={
                "program": to_json(self.program),
                "arguments": {key: value for key, value in self.parameters.items() if key != "seed"},
                "seed": self.parameters.get("seed", 0),
                "steps": self.steps,
                "folds": self.splits,
                **more,
            },
            stop=Stop(steps=last_step),
        )


def _answer(question: _Question, go: Go, *, tell: Tell) -> Selection:
    from dovetail.selection.choosing import candidates, decide
    from dovetail.selection.student import read_scores

    tell(f"1 of 3: {question.splits} students score the examples that they have not seen")
    scored = _run(question, question.scoring_tasks(), "scores", go)
    folders = [str(each.directory) for each in scored]
    scores, classes = read_scores(folders)
    _check_classes(question, len(scores), classes)
    tasks = {each: question.trial_tasks(each, folders) for each in candidates(question.methods, question.strengths)}
    tell(f"2 of 3: {len(tasks)} ways to choose, each on {question.splits} validation splits")
    tried = _run(question, [task for each in tasks.values() for task in each], "trials", go)
    metric, sign = ("accuracy", 1.0) if all("accuracy" in each.metrics for each in tried) else ("loss", -1.0)
    left = iter(tried)
    values = {each: [next(left).metrics[metric] for _ in own] for each, own in tasks.items()}
    chosen = decide({each: [sign * value for value in own] for each, own in values.items()})
    tell(f"3 of 3: {chosen}, of all {len(scores):,} examples")
    indices, weights = _choose_finally(question, chosen, folders, scores, go)
    return Selection(
        program=question.place,
        fraction=question.fraction,
        count=len(scores),
        method=chosen.method,
        strength=chosen.strength,
        indices=indices,
        weights=weights,
        metric=metric,
        trials=tuple(
            SelectionTrial(method=each.method, strength=each.strength, scores=tuple(own))
            for each, own in values.items()
        ),
    )


def _choose_finally(
    question: _Question, chosen: Candidate, folders: Sequence[str], scores: "Scores", go: Go
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The examples that the candidate chooses among all, and their weights."""
    import numpy

    from dovetail.selection.choosing import MAXGRAD, choose, screen
    from dovetail.selection.student import count_of, read_chosen

    if chosen.method == MAXGRAD:
        (final,) = _run(question, [question.final_task(chosen, folders)], "choice", go)
        indices = read_chosen(str(final.directory))
        weights = numpy.ones_like(indices)
    else:
        pool = screen(numpy.arange(len(scores)), scores, strength=chosen.strength)
        generator = numpy.random.default_rng([int(question.parameters.get("seed", 0)), 2])
        count = count_of(question.fraction, len(scores))
        indices, weights = choose(chosen.method, pool, scores, count=count, generator=generator)
    return tuple(indices.tolist()), tuple(weights.tolist())


def _run(question: _Question, tasks: Sequence[Task], what: str, go: Go) -> list[TaskResult]:
    """What came of these tasks, in their order. Raises `TrainingError` where one has not finished, with its reason."""
    result = go(Workload(name=f"select {question.name}: {what}", tasks=tuple(tasks)))
    found = [result[task.name] for task in tasks]
    if ended := [each for each in found if each.status != "finished"]:
        redact = Redactor([ended[0].task.parameters])
        raise TrainingError(
            f"all students must be trained to choose by them; {len(ended)} of {len(found)} were not. "
            + redact(f"{ended[0].name!r}: {ended[0].reason or ended[0].status}")
        )
    return found


@contextlib.contextmanager
def _running(engine: str | Engine | MakeEngine, *, address: str, store: Path, **how: Any) -> Iterator[Go]:
    """What runs a workload; on this machine workers stay from one to the next."""
    if engine == "local":
        with Session(store=store) as session:
            yield functools.partial(session.run, **how)
    else:
        yield functools.partial(run, engine=engine, address=address, store=store, **how)


def _teller(progress: bool) -> Tell:
    console = Console(stderr=True, quiet=not progress)
    return lambda line: console.print(plain(line), soft_wrap=True)


def _check(
    *, fraction: float, methods: Sequence[str], strengths: Sequence[float], steps: int, rounds: int, splits: int
) -> None:
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise DovetailError(f"a fraction must be above 0 and at most 1, got {fraction!r}.")
    if not methods:
        raise DovetailError(f"there must be a method to choose by: {', '.join(METHODS)}; got none.")
    for method in methods:
        check_name("a method to choose by", method, METHODS)
    if not strengths or not all(0 <= each < 1 for each in strengths):
        raise DovetailError(
            f"strengths of the screen must be parts of the examples, from 0 on and below 1, got {list(strengths)}."
        )
    for name, value, least in (("steps", steps, 1), ("rounds", rounds, 2), ("splits", splits, 2)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise DovetailError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def _check_classes(question: _Question, count: int, classes: int) -> None:
    kept = round(question.fraction * count)
    if kept < classes:
        raise DovetailError(
            f"a fraction must leave at least one example for each class; {question.fraction:g} of {count:,} leaves "
            f"{kept} for {classes} classes. Give at least {classes / count:.2g}."
            if classes <= count
            else f"there must be at least one example for each class; there are {count:,} for {classes} classes."
        )
