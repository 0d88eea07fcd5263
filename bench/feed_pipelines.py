"""The input pipelines of `bench/feed.py`: functions that anybody's loader can call, each by its name in this module.

What a function takes was set by thread CPU time on the machine of the results (`python bench/feed_pipelines.py` shows
what it takes here) and then frozen, so that every contestant and every later run does the same work. Imports nothing of
Dovetail, and of others only NumPy and, for pictures, Pillow: it is loaded in the environments of the others, too.
"""

import dataclasses
import functools
import hashlib
import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy

# Rounds of a hash that frees the interpreter's lock, and turns of a loop that holds it, in a millisecond.
HASHES_PER_MILLISECOND = 1950
TURNS_PER_MILLISECOND = 5730
VALUES = 64
PICTURES = 64


def free_lock(number: int, milliseconds: float) -> int:
    """Compute for so long without the interpreter's lock; gives a number that depends on the item."""
    rounds = max(1, int(milliseconds * HASHES_PER_MILLISECOND))
    return int.from_bytes(hashlib.pbkdf2_hmac("sha256", b"dovetail", str(number).encode(), rounds)[:4], "little")


def hold_lock(number: int, milliseconds: float) -> int:
    """Compute for so long in Python; gives a number that depends on the item."""
    found = int(number)
    for turn in range(int(milliseconds * TURNS_PER_MILLISECOND)):
        found = (found * 31 + turn) & 0xFFFFFFFF
    return found


def row(number: int, values: int = VALUES) -> Any:
    """An array that stands for an example."""
    return numpy.full(values, number % 65521, dtype=numpy.float32)


def wait_and_read(number: int) -> Any:
    """A read that waits 5 ms, as for a remote disk."""
    time.sleep(5e-3)
    return row(number)


def compute_in_python(number: int) -> Any:
    """A millisecond of Python."""
    return row(hold_lock(number, 1.0))


def compute_outside(number: int) -> Any:
    """Three milliseconds of what frees the lock."""
    return row(free_lock(number, 3.0))


def wait_for_file(number: int) -> int:
    """The mixed pipeline's first stage: 4 ms of waiting."""
    time.sleep(4e-3)
    return int(number)


def decode(number: int) -> int:
    """Its second: 3 ms that free the lock."""
    return free_lock(int(number), 3.0)


def augment(number: int) -> Any:
    """Its third: 1 ms of Python."""
    return row(hold_lock(int(number), 1.0))


def decode_some_slowly(number: int) -> Any:
    """One item in fifty takes twenty times as long."""
    return row(free_lock(int(number), 20.0 if int(number) % 50 == 7 else 1.0))


HEAVY_FROM = 3200


def decode_heavier(number: int) -> Any:
    """From an item on, three times the work, and four times the bytes."""
    heavy = int(number) >= HEAVY_FROM
    return row(free_lock(int(number), 3.0 if heavy else 1.0), 16_384 if heavy else 4_096)


def wait_for_shard(number: int) -> int:
    """Two milliseconds of waiting before heavier items."""
    time.sleep(2e-3)
    return int(number)


def tiny(number: int) -> Any:
    """An item that takes a microsecond or two."""
    return numpy.float32(number)


@functools.cache
def picture_files() -> tuple[Path, ...]:
    """JPEG files of 512 × 384, made once on a machine: waves of colour with fine ones on them. Were each process to
    make its own, its first items would take a second longer than anybody's pictures do."""
    folder = Path(tempfile.gettempdir()) / f"dovetail-bench-pictures-{os.getuid()}"
    files = tuple(folder / f"{number}.jpg" for number in range(PICTURES))
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for file in files:
            _draw_picture(int(file.stem)).save(made / file.name, "JPEG", quality=85)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return files


def _draw_picture(number: int) -> Any:
    from PIL import Image

    rows, columns, colours = numpy.ogrid[:384, :512, :3]
    coarse = numpy.sin(rows / (20.0 + number) + colours) + numpy.cos(columns / (31.0 + number) - colours)
    fine = numpy.sin(rows * columns * (number + 1) % 97)
    return Image.fromarray((127 + 50 * coarse + 20 * fine).astype(numpy.uint8))


def open_picture(number: int) -> bytes:
    """A file's bytes."""
    return picture_files()[int(number) % PICTURES].read_bytes()


def decode_picture(data: bytes) -> Any:
    """A picture of 128 × 128, by Pillow, which frees the lock for most of it."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as picture:
        return numpy.array(picture.convert("RGB").resize((128, 128)))


def large(number: int) -> Any:
    """An item of 1 MiB after half a millisecond of work: what fills queues."""
    return row(free_lock(int(number), 0.5), 1 << 18)


GROWN_FROM = 320


def grow(number: int) -> Any:
    """Items of 64 KiB, and from one on of 1 MiB: what was seen of sizes so far is too little all at once."""
    return row(free_lock(int(number), 0.5), 1 << 18 if int(number) >= GROWN_FROM else 1 << 14)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pipeline:
    """Functions one after another over the numbers of items, and then batches. `by_hand` is what a person would set who
    knows what each stage does: workers for each. Rates count from `counted_from` on."""

    name: str
    stages: tuple[Callable[[Any], Any], ...]
    by_hand: tuple[int, ...]
    batch: int = 16
    items: int = 1_000_000
    counted_from: int = 0
    holds_lock: bool = False

    def __call__(self, number: int) -> Any:
        """One item through all stages, as a map-style dataset gives it."""
        found: Any = number
        for stage in self.stages:
            found = stage(found)
        return found


PIPELINES = {
    each.name: each
    for each in (
        Pipeline(name="waits", stages=(wait_and_read,), by_hand=(16,)),
        Pipeline(name="python", stages=(compute_in_python,), by_hand=(2,), holds_lock=True),
        Pipeline(name="frees", stages=(compute_outside,), by_hand=(2,)),
        Pipeline(name="mixed", stages=(wait_for_file, decode, augment), by_hand=(4, 2, 1)),
        Pipeline(name="slow", stages=(decode_some_slowly,), by_hand=(2,)),
        Pipeline(name="heavier", stages=(wait_for_shard, decode_heavier), by_hand=(4, 2), counted_from=HEAVY_FROM),
        Pipeline(name="small", stages=(tiny,), by_hand=(1,), batch=256, items=50_000_000),
        Pipeline(name="pictures", stages=(open_picture, decode_picture), by_hand=(1, 2)),
    )
}
"""The eight pipelines, by name."""
LARGE = Pipeline(name="large", stages=(large,), by_hand=(2,), batch=4)
"""What budgets of memory are held against, and what grows under way."""
GROWING = Pipeline(name="growing", stages=(grow,), by_hand=(2,), batch=8)


class Numbers:
    """The numbers of a pipeline's items and what becomes of each: a map-style dataset."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def __len__(self) -> int:
        return self._pipeline.items

    def __getitem__(self, number: int) -> Any:
        return self._pipeline(number)


def steady_rate(batches: Iterable[Any], pipeline: Pipeline, *, warm_seconds: float, seconds: float) -> float:
    """Items per second of whoever gives these batches, after it has run for `warm_seconds` and has passed the item
    from which the pipeline is counted, over `seconds`."""
    iterator = iter(batches)
    start, passed = time.perf_counter(), 0
    while time.perf_counter() - start < warm_seconds or passed < pipeline.counted_from:
        next(iterator)
        passed += pipeline.batch
    began, taken = time.perf_counter(), 0
    last = began
    while last - began < seconds:
        next(iterator)
        taken += pipeline.batch
        last = time.perf_counter()
    return taken / (last - began)


def main() -> None:
    """Show what each function takes here."""
    for pipeline in (*PIPELINES.values(), LARGE):
        for number in (0, 7, HEAVY_FROM):
            pipeline(number)
            cpu, wall = time.thread_time(), time.perf_counter()
            for _ in range(20):
                pipeline(number)
            cpu, wall = (time.thread_time() - cpu) / 20, (time.perf_counter() - wall) / 20
            print(f"{pipeline.name:10} item {number:5}: {cpu * 1e3:7.3f} ms of a core, {wall * 1e3:7.3f} ms")


if __name__ == "__main__":
    main()
