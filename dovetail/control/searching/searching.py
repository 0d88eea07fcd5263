"""A search, carried out: trials are asked for while devices would idle, reported, pruned and told, until there are as
many as were wanted. Knows Optuna's study through its trial book; knows nothing of plans."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path

from dovetail.control.daemon.submissions import Submission
from dovetail.control.searching.breeding import Breeding
from dovetail.control.searching.capacity import tasks_at_once
from dovetail.control.searching.study_file import open_study, study_path
from dovetail.control.searching.trial_book import TASK, TrialBook
from dovetail.control.state import State
from dovetail.control.task_source import Prune, SourceMaker, TaskSource, Wish
from dovetail.describe import Search
from dovetail.metrics.progress import ENDED, fold
from dovetail.store import Store
from dovetail.vocabulary import DovetailError, Event, Population, Program, Task, Workload
from dovetail.vocabulary.events import StepsDone, TaskVanished, TrialMeasured

# Of a search whose sampler learns from results, at most this part is asked for at a time; but so many in any case, for
# Optuna's samplers draw the first ten at random.
_PART, _FEW = 4, 10
# These draw without regard to results, so that nothing is lost by asking for all at once.
_BLIND = ("RandomSampler", "QMCSampler", "GridSampler", "BruteForceSampler")


class Searching(TaskSource):
    """Asks for the tasks of a search."""

    def __init__(self, state: State, *, search: Search, home: Path, anew: bool = False) -> None:
        self._state, self._search = state, search
        study = open_study(search, home=home, name=state.workload.name)
        # A sampler that has tried all there is says so, by a method that is for Optuna's own loop.
        study.stop = self._stop  # type: ignore[method-assign]
        self._book = TrialBook(state, search=search, study=study, anew=anew)
        self._breeding = Breeding(state, book=self._book) if isinstance(search.sampler, Population) else None
        self._asked, self._is_stopped, self._is_resumed = 0, False, False
        self._news: list[Event] = []
        state.ledger.listeners.append(self._news.extend)

    def wishes(self) -> Iterator[Wish]:
        """Report and tell what has happened; go on with what was asked for before; then ask for more."""
        yield from self._hear()
        if not self._is_resumed:
            self._is_resumed = True
            yield from self._resume()
        if met := self._book.tell():
            self._is_stopped = True
            reason = f"{met[0]!r} has met the target"
            yield from [Prune(task=task, reason=reason) for task in self._book.open]
        if self._breeding is not None:
            yield from self._breeding.wishes()
        else:
            yield from self._ask()

    @property
    def to_come(self) -> int:
        """The trials that were not asked for yet."""
        if self._is_stopped or self._breeding is not None:  # clones take the places of others
            return 0
        return max(0, self._search.count - self._asked)

    @property
    def is_done(self) -> bool:
        """Whether all trials were asked for and told."""
        return not (self.to_come or self._book.open) and self._is_resumed

    def summary(self) -> str:
        """How many trials have ended, and the best of them."""
        return self._book.summary(max(self._search.count, self._book.told + len(self._book.open)))

    def _stop(self) -> None:
        self._is_stopped = True

    def _hear(self) -> Iterator[Wish]:
        news = list(self._news)
        self._news.clear()
        for event in news:
            if isinstance(event, StepsDone | TrialMeasured) and event.task in self._book.open:
                with _explaining(f"the pruner {type(self._book.study.pruner).__name__}"):
                    found = list(self._book.hear(event))
                yield from found

    def _resume(self) -> Iterator[Wish]:
        """Go on with the trials that are under way: submit what is on no record, report what was not reported."""
        import optuna

        if self._breeding is not None:
            return  # it has its own way, by place and generation
        for frozen in self._book.study.get_trials(deepcopy=False):
            running = frozen.state == optuna.trial.TrialState.RUNNING
            self._asked += running or (frozen.state.is_finished() and TASK in frozen.user_attrs)
            if running:
                reported = list(frozen.intermediate_values)
                yield from self._take_up(optuna.Trial(self._book.study, frozen._trial_id), reported)

    def _take_up(self, trial: object, reported: list[int]) -> Iterator[Submission]:
        import optuna

        assert isinstance(trial, optuna.Trial)
        with self._asking(trial.number):
            task = self._book.take_up(trial)
        self._book.catch_up(task, reported)
        yield from self._book.submission(task)

    def _ask(self) -> Iterator[Wish]:
        while self.to_come and self._state.queues.idles() and self._book.active() < self._at_once():
            with self._asking(self._asked):
                trial = self._book.study.ask()
            self._asked += 1
            yield from self._take_up(trial, [])

    def _at_once(self) -> int:
        search, state = self._search, self._state
        if search.at_once is not None:
            return search.at_once
        is_blind = type(self._book.study.sampler).__name__ in _BLIND
        most = search.count if is_blind else max(_FEW, -(-search.count // _PART))
        options = state.offers().options if state.known() else ()
        return tasks_at_once(options, state.cluster, most=most)

    def _asking(self, number: int) -> contextlib.AbstractContextManager[None]:
        sampler = type(self._book.study.sampler).__name__
        what = f"the sampler {sampler}" if not callable(self._search.space) else f"the space, or the sampler {sampler},"
        return _explaining(f"{what} asked for trial {number}")


@contextlib.contextmanager
def _explaining(what: str) -> Iterator[None]:
    """Say whose error it is that ends a search, and that nothing is lost by it."""
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        raise DovetailError(
            f"{what} must not raise; it raised {type(error).__name__}: {error}. What ran is saved: mend it, and run "
            f"the same again to go on."
        ) from error


def make_source(search: Search, *, home: Path, fresh: bool) -> SourceMaker:
    """What makes the source of a search's tasks; `fresh`: what the store has of them is trained anew."""
    return functools.partial(Searching, search=search, home=home, anew=fresh)


def take_up(store: Store, *, search: Search, workload: Workload, fresh: bool) -> Workload:
    """The open workload of a search with the tasks that the store has of it. Those of another program than it has now
    that have not ended, or all if `fresh`, are no longer its own; that is put on record."""
    assert isinstance(search.program, Program)
    assert store.home is not None
    progress = fold(event for _, event in store.events())
    mine, gone = list[Task](), list[Task]()
    for _, task in store.tasks(workload=workload.name):
        one = progress.get(task.identity)
        if one is not None and one.vanished:
            continue
        has_ended = one is not None and one.status in ENDED
        if fresh or not (has_ended or _is_same(task.program, search.program)):
            gone.append(task)
        else:  # where its file lies may have changed
            mine.append(task if has_ended else dataclasses.replace(task, program=search.program))
    store.add(events=[TaskVanished(task=task.identity, at_seconds=time.time()) for task in gone])
    if fresh:
        study_path(store.home, workload.name).unlink(missing_ok=True)
    return dataclasses.replace(workload, tasks=tuple(mine))


def _is_same(one: Program, other: Program) -> bool:
    places = [each.reference.rpartition("/")[2] for each in (one, other)]
    return places[0] == places[1] and one.source == other.source
