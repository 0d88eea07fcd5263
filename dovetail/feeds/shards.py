"""Data that stays where it lies: a data set of named pieces, and whoever reads it, one piece after the other.

The definition can be printed, compared and sent; nothing is read by it. A reader opens a shard when its turn comes and
not before, so a process need only reach the shards that it reads. Knows paths and URLs; knows nothing of nodes.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import inspect
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.feeds.keys import key
from dovetail.vocabulary import ProgramError
from dovetail.vocabulary.shards import SEEDED, DataShard, ShardSet, UrlProbe

_PROBE_BYTES = 4 << 20
# After each try of it; a server that is busy for a moment answers the next.
_PROBE_PAUSES = (0.5, 1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class Shards:
    """A data set of which the pieces lie on nodes: `Training(batches=dt.Shards(...))`.

    `read(place)` gives the batches of the shard at a path or URL, the same ones each time; with a second parameter
    `seed` it is told a number of the task's seed, epoch and shard, to shuffle by. Each epoch reads each shard once, in
    an order that `seed` decides; with `order="any"` whoever plans may choose it, puts it on record, and keeps to it.
    `chosen` are the orders of epochs that were. Shards that may be copied are, to the folder `copies` where there is
    one.

    >>> import dovetail as dt
    >>> pieces = [dt.DataShard(name=name, path=f"/data/{name}", batches=2) for name in ("left", "right")]
    >>> shards = dt.Shards(pieces, read=lambda place: [f"{place} 0", f"{place} 1"], seed=3)
    >>> shards
    Shards(left, right; seed=3, order='seeded')
    >>> len(shards), shards.order_of(0) in (("left", "right"), ("right", "left"))
    (4, True)
    """

    shards: tuple[DataShard, ...]
    _: dataclasses.KW_ONLY
    read: Callable[..., Iterable[Any]]
    seed: int = 0
    order: str = SEEDED
    chosen: tuple[tuple[str, ...], ...] = ()
    copies: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", tuple(self.shards))
        for each in self.shards:
            if not isinstance(each, DataShard):
                raise ProgramError(f"Shards must be given dt.DataShard pieces, got a {type(each).__name__}.")
        if not callable(self.read):
            raise ProgramError(f"Shards must have a function read(place), got {type(self.read).__name__}.")
        object.__setattr__(self, "chosen", tuple(map(tuple, self.chosen)))
        names = sorted(self.facts().names)
        for order in self.chosen:
            if order and sorted(order) != names:
                raise ProgramError(
                    f"an order of shards must have each of {', '.join(names)} once, got {', '.join(order)}."
                )

    def facts(self, *, accumulate: int = 1) -> ShardSet:
        """What planners know of these shards, and of the order in which they are read."""
        return ShardSet(shards=self.shards, seed=self.seed, order=self.order, accumulate=accumulate)

    def order_of(self, epoch: int) -> tuple[str, ...]:
        """The shards of an epoch in the order in which they are read."""
        chosen = self.chosen[epoch] if epoch < len(self.chosen) else ()
        return chosen or self.facts().order_of(epoch)

    def keep_readable(self) -> "Shards":
        """The same with only those shards that can be read where this is called, to measure steps by."""
        found = tuple(each for each in self.shards if each.url or os.path.exists(each.path))
        if not found:
            missing = ", ".join(each.place for each in self.shards)
            raise ProgramError(
                f"a node that trains must have one of the task's shards; this one has none of {missing}. Put one there,"
                f" or leave this node out of the cluster."
            )
        return dataclasses.replace(self, shards=found, chosen=())

    def batches_of(self, name: str, *, epoch: int, start: int = 0) -> Iterator[Any]:
        """The batches of one shard from a number on. Raises `ProgramError` where it is not here or has others than it
        says."""
        shard = self.facts()[name]
        if shard.path and not os.path.exists(shard.path):
            where = f", where {shard.node!r} says that it is" if shard.node else ""
            raise ProgramError(
                f"shard {name!r} must be at {shard.path} on the node that reads it{where}; it is not there. Put it "
                f"there, or correct its path or node."
            )
        count = 0
        for batch in self._open(shard, epoch):
            count += 1
            if count > shard.batches:
                break
            if count > start:
                yield batch
        if count != shard.batches:
            found = f"more than {shard.batches}" if count > shard.batches else str(count)
            raise ProgramError(
                f"shard {name!r} must give the {shard.batches} batches that it says; {shard.place} gave {found}."
            )

    def _open(self, shard: DataShard, epoch: int) -> Iterable[Any]:
        place = copy_once(shard.url, Path(self.copies)) if shard.copy and self.copies else shard.place
        if "seed" in inspect.signature(self.read).parameters:
            return self.read(place, seed=key(self.seed, "shard", epoch, shard.name))
        return self.read(place)

    def __len__(self) -> int:
        return sum(each.batches for each in self.shards)

    def __iter__(self) -> Iterator[Any]:
        return self.epoch(0)

    def epoch(self, number: int) -> Iterator[Any]:
        """The batches of one epoch, read in this process."""
        return itertools.chain.from_iterable(self.batches_of(each, epoch=number) for each in self.order_of(number))

    def __repr__(self) -> str:
        return f"Shards({', '.join(each.name for each in self.shards)}; seed={self.seed}, order={self.order!r})"


def copy_once(url: str, folder: Path) -> str:
    """The path of a file's copy in a folder, made by the first process that asks for it; others wait for that one.

    >>> import fsspec, tempfile
    >>> fsspec.filesystem("memory").pipe_file("/left.txt", b"text")
    >>> with tempfile.TemporaryDirectory() as name:
    ...     paths = [copy_once("memory://left.txt", Path(name)) for _ in range(2)]
    ...     paths[0] == paths[1], Path(paths[0]).read_bytes()
    (True, b'text')
    """
    import fsspec

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.blake2b(url.encode(), digest_size=8).hexdigest()
    path = folder / f"{digest}-{url.rstrip('/').rpartition('/')[2]}"
    with open(folder / f"{digest}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that has it
        if not path.exists():
            files, there = fsspec.core.url_to_fs(url)
            files.get_file(there, str(path.with_suffix(".part")))
            path.with_suffix(".part").rename(path)
    return str(path)


def probe_url(url: str) -> UrlProbe | None:
    """Read the beginning of a file, or of the first one in a folder, to learn at what rate it comes; None where it
    cannot be read here, also when asked again.

    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe_file("/right.txt", b"text")
    >>> probe_url("memory://right.txt").size_bytes, probe_url("memory://wrong.txt")
    (4, None)
    """
    import fsspec

    for pause in _PROBE_PAUSES:
        with contextlib.suppress(Exception):  # of as many kinds as there are file systems
            files, there = fsspec.core.url_to_fs(url)
            found = {there: files.info(there)}  # which connects, too
            if found[there]["type"] == "directory":
                found = files.find(there, detail=True)
            began = time.perf_counter()
            # Not a range of it: there are servers that answer with all of it.
            with files.open(min(found), "rb", cache_type="none") as file:
                read = len(file.read(_PROBE_BYTES))
            seconds = time.perf_counter() - began
            size = sum(each["size"] or 0 for each in found.values())
            return UrlProbe(size_bytes=max(size, read), bytes_per_second=max(read, 1) / max(seconds, 1e-9))
        time.sleep(pause)
    return None


class ShardReader:
    """Reads a data set of shards epoch after epoch: each `iter` goes on where `load_state_dict` said, or begins the
    next epoch. Shards before that position are not opened.

    >>> pieces = [DataShard(name=name, url=f"memory://{name}", batches=1) for name in "ab"]
    >>> reader = ShardReader(Shards(pieces, read=lambda place: [place]))
    >>> sorted(reader), reader.state_dict()
    (['memory://a', 'memory://b'], {'epoch': 0, 'index': 2, 'shards': []})
    """

    def __init__(self, definition: Shards) -> None:
        self.definition = definition
        self._inner: dict[str, Any] = {"epoch": 0, "index": 0, "begun": False}

    def __len__(self) -> int:
        return len(self.definition)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: the epoch, how many of its batches were given, and the shards of which some were, as far as
        the epoch is not over."""
        epoch, index = self._inner["epoch"], self._inner["index"]
        begun = [] if index == len(self.definition) else self._begun_shards(epoch, index)
        return {"epoch": epoch, "index": index, "shards": begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there at the next `iter`. Raises `ProgramError` where other shards were read up to there."""
        epoch, index = int(state["epoch"]), int(state["index"])
        if (found := self._begun_shards(epoch, index)) != list(state["shards"]) and index < len(self.definition):
            raise ProgramError(
                f"a task must read shards in the order in which it began: {', '.join(state['shards'])}; found "
                f"{', '.join(found)}. Keep the shards' names and batches, the seed and the order as they were."
            )
        self._inner = {"epoch": epoch, "index": index, "begun": False}

    def __iter__(self) -> Iterator[Any]:
        inner = self._inner
        if inner["begun"]:
            inner.update(epoch=inner["epoch"] + 1, index=0)
        inner["begun"] = True
        passed = 0
        for name in self.definition.order_of(inner["epoch"]):
            size = self.definition.facts()[name].batches
            if passed + size > inner["index"]:
                for batch in self.definition.batches_of(name, epoch=inner["epoch"], start=inner["index"] - passed):
                    inner["index"] += 1
                    yield batch
            passed += size

    def _begun_shards(self, epoch: int, index: int) -> list[str]:
        begun, passed = [], 0
        for name in self.definition.order_of(epoch):
            if passed >= index:
                break
            begun.append(name)
            passed += self.definition.facts()[name].batches
        return begun
