"""Where a feed's items come from.

An `ItemSource` has a length and reads any item by its number, from any thread or process. A `StreamSource` is any other
iterable: its items come in its own order, each epoch from the beginning, so that to stand somewhere again all before it
is read once more. Knows files and datasets; knows nothing of stages.
"""

import abc
import collections
import functools
import operator
import os
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from dovetail.vocabulary import ProgramError

_PATTERN = "*?["
_KEPT_GROUPS = 4


class ItemSource(abc.ABC):
    """Items by number. Called from several threads at once, and in other processes after it was pickled."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many items there are."""

    @abc.abstractmethod
    def read(self, index: int) -> Any:
        """The item of this number."""

    def reader(self) -> Callable[[int], Any]:
        """The same as a function to be called many times."""
        return self.read

    @abc.abstractmethod
    def describe(self) -> str:
        """A few words on what this source reads, for tables and messages."""


class DatasetSource(ItemSource):
    """A list, a map-style dataset of torch, an array: anything with a length and items by number.

    >>> DatasetSource(["a", "b"]).read(1)
    'b'
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def read(self, index: int) -> Any:
        """The item of this number, as the dataset gives it."""
        return self.data[index]

    def reader(self) -> Callable[[int], Any]:
        """The same without a call of Python's own for each."""
        return functools.partial(operator.getitem, self.data)

    def describe(self) -> str:
        """The dataset's type and length."""
        return f"{type(self.data).__name__} of {len(self.data):,} items"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetSource):
            return NotImplemented
        both_plain = all(isinstance(each, list | tuple | range) for each in (self.data, other.data))
        try:  # others than lists are compared by identity: tensors have no single answer
            return self.data is other.data or (both_plain and bool(self.data == other.data))
        except (RuntimeError, ValueError):
            return False

    def __hash__(self) -> int:
        return hash(type(self.data))


class SelectedSource(ItemSource):
    """Some items of another source, by their numbers there, in this order; one that is named twice is there twice.

    >>> SelectedSource(DatasetSource("abcd"), [3, 1]).read(0)
    'd'
    """

    def __init__(self, source: ItemSource, numbers: Sequence[int]) -> None:
        self.source, self.numbers = source, tuple(map(int, numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, index: int) -> Any:
        """The item that is here under this number."""
        return self.source.read(self.numbers[index])

    def describe(self) -> str:
        """How many items of what."""
        return f"{len(self):,} of {self.source.describe()}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SelectedSource) and (self.source, self.numbers) == (other.source, other.numbers)

    def __hash__(self) -> int:
        return hash((self.source, self.numbers))


class TarSource(ItemSource):
    """Samples in tar files, as WebDataset lays them out: files of one stem are one sample, a dict of its files' bytes
    by ending, with the stem as `__key__`. The headers of all shards are read once, at the first use."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._samples: list[tuple[int, str, tuple[tuple[str, int, int], ...]]] | None = None

    def __len__(self) -> int:
        return len(self._index())

    def read(self, index: int) -> dict[str, Any]:
        """One sample; only its own bytes are read."""
        shard, stem, files = self._index()[index]
        system, path = _file_system(self.paths[shard])
        found: dict[str, Any] = {"__key__": stem}
        for ending, start, size in files:
            found[ending] = system.cat_file(path, start=start, end=start + size) if size else b""
        return found

    def describe(self) -> str:
        """How many shards there are."""
        return f"{len(self.paths)} tar shards"

    def _index(self) -> list[tuple[int, str, tuple[tuple[str, int, int], ...]]]:
        if self._samples is None:
            self._samples = [sample for number in range(len(self.paths)) for sample in self._samples_of(number)]
        return self._samples

    def _samples_of(self, shard: int) -> list[tuple[int, str, tuple[tuple[str, int, int], ...]]]:
        files: dict[str, list[tuple[str, int, int]]] = {}
        system, path = _file_system(self.paths[shard])
        try:
            with system.open(path, "rb") as opened, tarfile.open(fileobj=opened, mode="r:") as archive:
                for member in archive:
                    if member.isfile():
                        stem, _, ending = os.path.basename(member.name).partition(".")
                        stem = os.path.join(os.path.dirname(member.name), stem)
                        files.setdefault(stem, []).append((ending, member.offset_data, member.size))
        except tarfile.ReadError as error:
            raise ProgramError(
                f"a tar shard must be an uncompressed tar file, whose samples can be read one by one; "
                f"{self.paths[shard]!r} is not: {error}. Unpack it, or write it without compression."
            ) from error
        return [(shard, stem, tuple(each)) for stem, each in files.items()]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TarSource) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)


class ParquetSource(ItemSource):
    """Rows of Parquet files, each a dict by column. A row group is read whole, and the last few are kept for each
    process, so a window of shuffling much larger than those reads them many times."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._starts: list[tuple[int, int, int]] | None = None
        self._open_groups()

    def _open_groups(self) -> None:
        self._lock = threading.Lock()
        self._groups: collections.OrderedDict[tuple[int, int], Any] = collections.OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "_starts": self._starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open_groups()

    def __len__(self) -> int:
        return self._index()[-1][0]

    def read(self, index: int) -> dict[str, Any]:
        """The row of this number, as a value for each column."""
        import bisect

        place = bisect.bisect_right(self._index(), index, key=lambda entry: entry[0]) - 1
        start, shard, group = self._index()[place]
        row: list[dict[str, Any]] = self._group(shard, group).slice(index - start, 1).to_pylist()
        return row[0]

    def describe(self) -> str:
        """How many files there are."""
        return f"{len(self.paths)} Parquet files"

    def _index(self) -> list[tuple[int, int, int]]:
        """The first row of each row group with its file and number, and at the end the number of all rows."""
        if self._starts is None:
            found, total = [], 0
            for shard in range(len(self.paths)):
                metadata = self._file(shard).metadata
                for group in range(metadata.num_row_groups):
                    found.append((total, shard, group))
                    total += metadata.row_group(group).num_rows
            self._starts = [*found, (total, -1, -1)]
        return self._starts

    def _group(self, shard: int, group: int) -> Any:
        with self._lock:
            if (shard, group) in self._groups:
                self._groups.move_to_end((shard, group))
                return self._groups[shard, group]
        table = self._file(shard).read_row_group(group, use_threads=False)
        with self._lock:
            self._groups[shard, group] = table
            while len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
        return table

    def _file(self, shard: int) -> Any:
        try:
            from pyarrow import parquet
        except ImportError:
            raise ProgramError(
                "a feed of Parquet files must have pyarrow; it is not installed: pip install pyarrow."
            ) from None
        system, path = _file_system(self.paths[shard])
        return parquet.ParquetFile(path, filesystem=system)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ParquetSource) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)


class StreamSource:
    """Any iterable, which each epoch iterates from its beginning.

    >>> list(StreamSource({1: "a", 2: "b"}.keys()))
    [1, 2]
    """

    def __init__(self, data: Iterable[Any]) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def describe(self) -> str:
        """The iterable's type."""
        return f"stream of {type(self.data).__name__}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamSource) and self.data is other.data

    def __hash__(self) -> int:
        return id(self.data)


def source_of(data: Any) -> ItemSource | StreamSource:
    """The source of what a user gave: items by number, paths, tar or Parquet shards, or a stream.

    >>> source_of([1, 2]).describe()
    'list of 2 items'
    """
    if isinstance(data, ItemSource | StreamSource):
        return data
    if isinstance(data, str | os.PathLike):
        return _source_of_paths(_expand(os.fspath(data)))
    if isinstance(data, list | tuple) and data and all(isinstance(each, str) for each in data):
        return _source_of_paths(data)
    is_stream = isinstance(data, IterableDataset)  # which has a __getitem__ that raises
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, dict) and not is_stream:
        return DatasetSource(data)
    if not hasattr(data, "__iter__"):
        raise ProgramError(
            f"a feed's source must be a dataset, a list, paths or an iterable, got {type(data).__name__}."
        )
    if iter(data) is data:
        raise ProgramError(
            f"a feed's source must give its items each time it is iterated; a {type(data).__name__} runs once only. "
            f"Use a list, or a class with __iter__."
        )
    return StreamSource(data)


def _source_of_paths(paths: Sequence[str]) -> ItemSource:
    if all(path.endswith(".parquet") for path in paths):
        return ParquetSource(paths)
    if all(path.endswith((".tar", ".tar.gz", ".tgz")) for path in paths):
        return TarSource(paths)
    return DatasetSource(paths)


def _expand(pattern: str) -> list[str]:
    """The paths that match a pattern, sorted, on any file system that fsspec knows."""
    system, path = _file_system(pattern)
    found = sorted(system.glob(path)) if any(each in pattern for each in _PATTERN) else [path]
    if not found or not system.exists(found[0]):
        raise ProgramError(f"a feed's pattern must match files; {pattern!r} matches none.")
    is_local = "file" in system.protocol if isinstance(system.protocol, tuple) else system.protocol == "file"
    return list(found) if is_local else [system.unstrip_protocol(each) for each in found]


@functools.lru_cache(maxsize=64)
def _file_system(path: str) -> tuple[Any, str]:
    import fsspec

    try:
        return fsspec.core.url_to_fs(path)  # type: ignore[no-any-return]
    except ImportError as error:
        package = "'dovetail[s3]'" if path.startswith(("s3://", "s3a://")) else "the package for it"
        raise ProgramError(
            f"a feed's paths must be reached by fsspec; found for {path!r}: {error}. Install it: pip install {package}."
        ) from error
