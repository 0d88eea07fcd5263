"""One feed for several trainings that read the same: each batch is read once, and each of them gets one of its own.

Trainings that take steps together stand at the same place, and one reader serves them. Where they stand at different
places when the first of them asks, as after some were stopped earlier, there is a reader for each place. Who leaves the
others later is read plainly. Batches are kept until all have had them; whoever falls far behind has ended, and is not
waited for. Knows definitions and positions; who reads how fast is for others to know. For one thread.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dovetail.feeds.assembly import FeedPosition
from dovetail.feeds.definition import Feed
from dovetail.feeds.plain_reader import PlainReader
from dovetail.feeds.running import RunningFeed
from dovetail.feeds.shared import copy_tensors
from dovetail.feeds.sources import ItemSource

Place = tuple[int, int, int]
"""An epoch, how many of its batches were given, and the place in its order."""
OpenReader = Callable[[int], RunningFeed]
"""Opens a running feed, given how many there will be at once."""


class SharedFeed:
    """Reads one definition for as many trainings as there are `definitions`, which are equal to it or said to be.
    `together` batches may be taken by one of them before the others take theirs.

    >>> from dovetail.feeds.definition import feed
    >>> numbers = feed(range(4)).batch(2)
    >>> with numbers.open() as running:
    ...     shared = SharedFeed([numbers, numbers], open_reader=lambda readers: running)
    ...     one, other = map(iter, shared.views)
    ...     next(one).tolist(), next(other).tolist(), running.stats().batches
    ([0, 1], [0, 1], 1)
    """

    def __init__(self, definitions: Sequence[Feed], *, open_reader: OpenReader, together: int = 1) -> None:
        self._definition, self._open_reader = definitions[0], open_reader
        # What is left of an epoch may be dropped on the way to the next step's batches.
        self._most_behind = 2 * together + 1
        self.views = [FeedView(self, definition) for definition in definitions]
        self._readers: list[_Reader] | None = None

    def take(self, view: "FeedView") -> "_Given":
        """What comes next for one of the views."""
        if self._readers is None:
            self._readers = self._open_readers()
        reader = next((each for each in self._readers if each.serves(view.place)), None)
        if reader is None:
            reader = _Reader(PlainReader(self._definition), [view], most_behind=self._most_behind)
            self._readers.append(reader)
        found = reader.give(view)
        for other in self._readers:
            if other is not reader:
                other.forget(view)
        self._readers = [each for each in self._readers if each.is_wanted]
        return found

    def _open_readers(self) -> "list[_Reader]":
        """A reader for each place at which views stand."""
        standing: dict[Place, list[FeedView]] = {}
        for view in self.views:
            standing.setdefault(view.place, []).append(view)
        return [
            _Reader(self._open_reader(len(standing)), views, most_behind=self._most_behind)
            for views in standing.values()
        ]


class FeedView:
    """The batches of one of the trainings that share a feed, with a position of its own."""

    def __init__(self, shared: SharedFeed, definition: Feed) -> None:
        self.definition = definition
        self._shared, self._inner = shared, _Standing()

    def __len__(self) -> int:
        return len(self.definition)

    def __iter__(self) -> Iterator[Any]:
        if self._inner.begun:
            self._inner.at = FeedPosition(epoch=self.at.epoch + 1)
        self._inner.begun = True
        return self._read()

    def _read(self) -> Iterator[Any]:
        while True:
            given = self._shared.take(self)
            self._inner.at = given.after
            if given.after.ended:
                return
            yield given.value

    @property
    def at(self) -> FeedPosition:
        """Where it stands."""
        return self._inner.at

    @property
    def place(self) -> Place:
        """Where it stands, to be compared."""
        return self.at.epoch, self.at.index, self.at.place

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: epoch and position."""
        return self.at.state(self._length())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there at the next `iter`."""
        self._inner = _Standing(at=FeedPosition.of_state(dict(state), self._length()))

    def _length(self) -> int | None:
        source = self.definition.source
        return len(source) if isinstance(source, ItemSource) else None


@dataclasses.dataclass(slots=True)
class _Standing:
    at: FeedPosition = dataclasses.field(default_factory=FeedPosition)
    begun: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Given:
    """What is given at a place, and where its reader stands afterwards. `number` counts what a reader has given."""

    before: Place
    value: Any
    after: FeedPosition
    number: int


class _Reader:
    """Reads for some views that stand at one place."""

    def __init__(self, source: RunningFeed | PlainReader, views: Sequence[FeedView], *, most_behind: int) -> None:
        self._source, self._most_behind = source, most_behind
        self._at = views[0].at.copy()
        self._source.load_state_dict(self._at.state(None))
        self._batches: Iterator[Any] | None = None
        self._kept: collections.deque[_Given] = collections.deque()
        self._given = 0
        self._next = dict.fromkeys(views, 0)
        """For each view the number of what it has not had yet."""

    @property
    def is_wanted(self) -> bool:
        """Whether a view is served."""
        return bool(self._next)

    def serves(self, place: Place) -> bool:
        """Whether what comes at a place is kept, or is what this one would read next."""
        own = self._at.epoch, self._at.index, self._at.place
        comes_next = (own == place and not self._at.ended) or place == (self._at.epoch + 1, 0, 0)
        return comes_next or any(each.before == place for each in self._kept)

    def give(self, view: FeedView) -> _Given:
        """What comes next for a view: a copy where others will want it, too, for a training may write into it."""
        found = next((each for each in self._kept if each.before == view.place), None) or self._draw(view.place)
        self._next[view] = found.number + 1
        self._next = {each: own for each, own in self._next.items() if own >= self._given - self._most_behind}
        while self._kept and self._kept[0].number < min(self._next.values()):
            self._kept.popleft()
        is_wanted = bool(self._kept) and self._kept[0].number <= found.number
        return dataclasses.replace(found, value=copy_tensors(found.value)) if is_wanted else found

    def forget(self, view: FeedView) -> None:
        """A view has gone elsewhere."""
        if self._next.pop(view, None) is not None and not self._next and isinstance(self._source, RunningFeed):
            self._source.rest()

    def _draw(self, place: Place) -> _Given:
        if self._batches is None or place[0] > self._at.epoch:
            if self._batches is None and place[0] > self._at.epoch:
                self._source.load_state_dict(FeedPosition(epoch=place[0]).state(None))
            self._batches = iter(self._source)
        try:
            value = next(self._batches)
            self._at = FeedPosition.of_state(self._source.state_dict(), None)
        except StopIteration:
            stood = self._at if place[0] == self._at.epoch else FeedPosition(epoch=place[0])
            value, self._at = None, stood.copy(ended=True)
        found = _Given(place, value, self._at, self._given)
        self._given += 1
        self._kept.append(found)
        return found
