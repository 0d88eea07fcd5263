"""A `DataLoader` of torch read by a feed's workers, with the batches that it would give to the bit.

Its order is drawn here, in the thread that asks, for a whole epoch when that begins: with the random numbers that each
batch would have found, its own generator included. Reading a batch by its numbers is the feed's one stage. A dataset
may draw from torch's global generator, which each batch finds as it would have; one that draws from Python's or
NumPy's, which are carried from batch to batch, is read here from the first such batch on. Which loaders are left
alone, and why, `explain_refusal` says.
"""

import dataclasses
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, IterableDataset, MapDataPipe
from torch.utils.data._utils.pin_memory import pin_memory

from dovetail.feeds.definition import DEFAULT_BUDGET_BYTES, Feed, feed
from dovetail.feeds.generators import generators_in, put_back
from dovetail.feeds.keyed_draws import as_before, code_names, global_state, may_draw, one_thread
from dovetail.feeds.running import FeedStats, RunningFeed
from dovetail.vocabulary import FeedPlan, ProgramError

FETCH = "fetch"
"""The name of the stage that reads a batch."""


@dataclasses.dataclass(frozen=True, slots=True)
class BatchNumbers:
    """The items of one batch, and how torch's global generator stands before they are read: its seed, and its whole
    state where the sampler has drawn from it first."""

    indices: Any
    seed: int
    state: bytes | None


class DrewCarried:
    """What is given for a batch whose items have drawn from Python's or NumPy's generators: this class itself."""


class BatchFetcher:
    """Reads a batch as a loader without workers does. The function of the feed's stage.

    In a worker process, whose generators are its own, torch's stands as it was drawn for the batch, and whatever moves
    the others is noticed. In a thread nothing is touched: only datasets that are not seen to draw are read there.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._data, self._collate = loader.dataset, loader.collate_fn
        self._home = os.getpid()

    def __call__(self, batch: BatchNumbers) -> Any:
        if os.getpid() == self._home:
            return self._fetch(batch)
        before = carried_generators()
        value = self.read(batch)
        return value if carried_generators() == before else DrewCarried

    def read(self, batch: BatchNumbers) -> Any:
        """Read it, with torch's generator as it was drawn for it."""
        if batch.state is None:
            torch.default_generator.manual_seed(batch.seed)
        else:
            torch.default_generator.set_state(torch.frombuffer(bytearray(batch.state), dtype=torch.uint8))
        return self._fetch(batch)

    def _fetch(self, batch: BatchNumbers) -> Any:
        data: Any = self._data
        if getattr(data, "__getitems__", None):
            return self._collate(data.__getitems__(batch.indices))
        return self._collate([data[index] for index in batch.indices])


class RunningLoader:
    """A loader whose batches workers read. A `Cursor` takes it where it takes a loader; `follow`, `tell`, `stats` and
    `close` are a running feed's.

    >>> from torch.utils.data import TensorDataset
    >>> loader = DataLoader(TensorDataset(torch.arange(5)), batch_size=2)
    >>> with RunningLoader(loader) as running:
    ...     [batch[0].tolist() for batch in running.make_reading(lambda index: None)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        loader: "DataLoader[Any]",
        *,
        plan: FeedPlan | None = None,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        counts_cpu: bool = False,
    ) -> None:
        if why := explain_refusal(loader):
            raise ProgramError(f"a loader that a feed reads must give its items when they are asked for; {why}.")
        self.loader = loader
        self._fetcher, self._epoch = BatchFetcher(loader), _EpochOrder()
        self.definition = feed_of_loader(loader, self._fetcher, self._epoch)
        self.running = RunningFeed(self.definition, plan=plan, budget_bytes=budget_bytes, counts_cpu=counts_cpu)
        self.rests_for: list[RunningLoader] = []
        """Others that read the same for the same trainings: they rest as this one begins to read."""
        self.read_from: Callable[[RunningLoader, int], Iterator[Any]] = RunningLoader.read_alone
        """Gives what workers have read of this loader's epoch from a place on."""
        self._is_read_here = False

    def __len__(self) -> int:
        return len(self.loader)

    def __enter__(self) -> "RunningLoader":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        """The loader's own batches, without workers."""
        return iter(self.loader)

    def make_reading(self, before_draw: Callable[[int], None]) -> "_LoaderReading":
        """What a cursor iterates once an epoch; `before_draw` seeds torch's generator for the batch of this number."""
        return _LoaderReading(self, before_draw)

    @property
    def plan(self) -> FeedPlan:
        """How it runs now: what was asked for, as far as it can be."""
        return self.running.plan

    def follow(self, plan: FeedPlan) -> None:
        """Run as another plan says from now on."""
        self.running.follow(plan)

    def tell(self, consumed: Callable[[float], None]) -> None:
        """Call this function whenever a batch is asked for, with how long the last one was had."""
        self.running.tell(consumed)

    def stats(self) -> FeedStats:
        """What the feed that reads this loader has done so far."""
        return self.running.stats()

    @property
    def notes(self) -> tuple[str, ...]:
        """What users should know, in sentences."""
        return self.running.notes

    def close(self) -> None:
        """End the workers that read this loader."""
        self.running.close()

    def read_epoch(self, before_draw: Callable[[int], None]) -> "LoaderEpoch":
        """Draw an epoch's order, and read its batches."""
        loader: Any = self.loader
        order = iter(loader.batch_sampler)
        # torch's own iterator then draws a seed for its workers, also where there are none.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        # One with workers asks for its first batches as it begins, and for one more with each that it gives.
        ahead = loader.num_workers * (loader.prefetch_factor or 0)
        self._epoch.batches = list(_draw_order(order, before_draw, ahead=ahead))
        return LoaderEpoch(self)

    def read_alone(self, place: int) -> Iterator[Any]:
        """What its own workers give of the epoch from a place on."""
        for other in self.rests_for:
            other.running.rest()
        at = {"epoch": 0, "index": place, "position": place, "skipped": 0, "items": None}
        self.running.load_state_dict(at)
        return iter(self.running)

    def finish(self, batch: BatchNumbers, value: Any) -> Any:
        """What is given in the end of what a worker has read."""
        if value is DrewCarried:
            self._take_over()
        if value is DrewCarried or self._is_read_here:
            value = self._fetcher.read(batch)
        return pin_memory(value) if self.loader.pin_memory and torch.cuda.is_available() else value

    def read_here(self, batch: BatchNumbers) -> Any:
        """Read a batch in this thread."""
        return self._fetcher.read(batch)

    @property
    def is_read_here(self) -> bool:
        """Whether workers have nothing more to do with it."""
        return self._is_read_here

    @property
    def order(self) -> list[BatchNumbers]:
        """The batches of the epoch that was begun last."""
        return self._epoch.batches

    def _take_over(self) -> None:
        """Read in this thread from here on. Until here nothing has been drawn from what is carried."""
        if self.loader.num_workers:
            raise ProgramError(
                "a loader with workers that a feed reads must have a dataset that draws nothing from Python's or "
                "NumPy's generators, for that depends on the loader's workers; this one has drawn some. Draw from "
                "torch's, or use num_workers=0."
            )
        self._is_read_here = True


class _EpochOrder:
    """The batches of an epoch, as the source of a feed."""

    def __init__(self) -> None:
        self.batches: list[BatchNumbers] = []

    def __iter__(self) -> Iterator[BatchNumbers]:
        return iter(self.batches)


class _LoaderReading:
    def __init__(self, running: RunningLoader, before_draw: Callable[[int], None]) -> None:
        self._running, self._before_draw = running, before_draw

    def __iter__(self) -> "LoaderEpoch":
        return self._running.read_epoch(self._before_draw)


class LoaderEpoch:
    """The batches of one epoch. Those before a position can be passed without being read."""

    def __init__(self, running: RunningLoader) -> None:
        self._running, self._place = running, 0
        self._batches: Iterator[Any] | None = None
        self.is_passed = False
        """Whether what is read now is read to be passed, which is not worth reading ahead for."""

    def __iter__(self) -> "LoaderEpoch":
        return self

    def __next__(self) -> Any:
        order = self._running.order
        if self._place >= len(order):
            raise StopIteration
        value = None
        if self.is_passed:
            value = self._running.read_here(order[self._place])
        elif not self._running.is_read_here:
            if self._batches is None:
                self._batches = self._running.read_from(self._running, self._place)
            value = next(self._batches)
        batch = order[self._place]
        self._place += 1
        return self._running.finish(batch, value)

    def skip(self, count: int) -> int:
        """Pass up to so many batches; gives how many there were."""
        passed = min(count, len(self._running.order) - self._place)
        self._place += passed
        self._batches = None
        return passed


def feed_of_loader(loader: "DataLoader[Any]", fetcher: BatchFetcher, order: Any) -> Feed:
    """The feed that reads a loader's batches, given an order of them."""
    draws = draws_globally(loader)
    return feed(order).map(fetcher, name=FETCH, draws=draws)


def draws_globally(loader: "DataLoader[Any]") -> bool:
    """Whether items of a loader are seen to draw from global generators: in their code, or as one is read. Everything
    is as before afterwards."""
    if may_draw(loader.dataset) or may_draw(loader.collate_fn):
        return True
    data: Any = loader.dataset
    if not len(data):
        return False
    with as_before(), one_thread():
        index = _first_index(loader)
        stood = global_state()
        loader.collate_fn([data[index]])
        return global_state() != stood


def _first_index(loader: "DataLoader[Any]") -> Any:
    """The number of an item that a loader would read, whatever it counts by."""
    again = [put_back(generator) for generator in generators_in(loader)]
    try:
        return next(iter(loader.batch_sampler))[0]  # type: ignore[arg-type]
    finally:
        for put in again:
            put()


def _draw_order(order: Iterator[Any], before_draw: Callable[[int], None], *, ahead: int) -> Iterator[BatchNumbers]:
    index, generator = -ahead, torch.default_generator
    while True:
        if index >= 0:
            before_draw(index)
        stood = generator.get_state()
        try:
            indices = next(order)
        except StopIteration:
            return
        now = generator.get_state()
        state = None if torch.equal(stood, now) else now.numpy().tobytes()
        yield BatchNumbers(indices, generator.initial_seed(), state)
        index += 1


def _uses_carried(sampler: Any) -> bool:
    """Whether the code of a sampler names Python's or NumPy's generators."""
    own = getattr(type(sampler), "__iter__", None)
    names = code_names(sampler)
    known = getattr(own, "__globals__", {})
    return any(known.get(name) in (random, numpy, numpy.random) for name in names) or "random" in names


def carried_generators() -> tuple[Any, ...]:
    """Where Python's and NumPy's generators stand.

    >>> carried_generators() == carried_generators()
    True
    """
    name, words, *rest = numpy.random.get_state(legacy=True)
    return random.getstate(), name, words.tobytes(), *rest  # type: ignore[union-attr]


def explain_refusal(loader: Any) -> str:
    """Why workers of a feed could not read this loader's batches to the bit; empty where they can.

    >>> explain_refusal(DataLoader([1, 2], batch_size=2))
    ''
    >>> explain_refusal(DataLoader([1, 2], batch_size=None))
    'it gives items and no batches (batch_size=None)'
    """
    if type(loader) is not DataLoader:
        return f"it is no DataLoader of torch's, but a {type(loader).__name__}"
    data: Any = loader.dataset
    if isinstance(data, IterableDataset | MapDataPipe) or not hasattr(data, "__getitem__"):
        return f"a {type(data).__name__} gives its items in an order of its own"
    if loader.batch_sampler is None:
        return "it gives items and no batches (batch_size=None)"
    if not _has_length(loader.batch_sampler):
        return "its sampler has no length"
    for sampler in (loader.batch_sampler, loader.sampler):
        if not type(sampler).__module__.startswith("torch.") and _uses_carried(sampler):
            return f"its {type(sampler).__name__} may draw its order from Python's or NumPy's generators"
    if loader.persistent_workers:
        return "its workers keep what they have from epoch to epoch (persistent_workers)"
    if loader.num_workers and loader.worker_init_fn is not None:
        return "its worker_init_fn is for workers of its own"
    if next(generators_in(data), None) is not None:
        return "its dataset carries a generator from item to item"
    if "get_worker_info" in code_names(data):
        return "its dataset asks which of the loader's workers reads it (get_worker_info)"
    if loader.num_workers and draws_globally(loader):
        return "its dataset draws random numbers, which depend on the loader's workers; with num_workers=0 they do not"
    return ""


def _has_length(sampler: Any) -> bool:
    try:
        len(sampler)  # torch's own knows it where the sampler within does
    except (TypeError, NotImplementedError):
        return False
    return True
