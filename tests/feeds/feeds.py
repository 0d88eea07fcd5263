"""Feeds and plans for tests, at module level, where worker processes find them too."""

import os
import random
import time

import numpy
import torch

from dovetail.feeds.definition import Feed, feed
from dovetail.vocabulary import FeedPlan, StagePlan


def plan(definition: Feed, worker: str = "thread", workers: int = 1, **stages: tuple[str, int]) -> FeedPlan:
    """Every stage with so many workers of a kind, but for those named."""
    found = []
    for stage in definition.work_stages():
        kind, count = stages.get(stage.name, (worker, workers))
        found.append(StagePlan(name=stage.name, worker=kind, workers=count))
    return FeedPlan(stages=tuple(found))


def same(batches, others) -> bool:
    """Whether two lists of batches are equal to the bit."""
    return len(batches) == len(others) and all(map(equal, batches, others))


def equal(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, numpy.ndarray):
        return one.dtype == other.dtype and numpy.array_equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and same(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def square(number):
    return number * number


def is_odd(number):
    return number % 2


def noise(number, rng):
    return number + float(rng.random())


def draw_python(number):
    return float(number) + random.random()


def draw_numpy(number):
    return float(number) + numpy.random.rand()


def draw_torch(number):
    return torch.rand(3) + float(number)


def sums(numbers):
    return [sum(numbers)] * len(numbers)


def image(number):
    return torch.full((3, 8, 8), float(number)), number


def large(number):
    """A quarter of a MiB."""
    return torch.full((256, 256), float(number))


def grown_at_once(number):
    """A KiB after a moment, and 256 times as much from item 160 on."""
    time.sleep(1e-3)
    return torch.full((256 * (256 if number >= 160 else 1),), float(number))


def large_later(number):
    """A 64th of a MiB, and 32 times as much from item 40 on."""
    return torch.full((4096 * (32 if number >= 40 else 1),), float(number)).sum(), torch.zeros(
        4096 * (32 if number >= 40 else 1)
    )


def uneven(number):
    """Now and then an item takes much longer than others."""
    time.sleep(0.02 if number % 17 == 0 else 0.0005)
    return number


def brief(number):
    """A part of an epoch takes less than handing it over may take: the next is sent ahead."""
    time.sleep(1e-3)
    return number


def fails_at_five(number):
    if number == 5:
        raise ValueError("it is five")
    return number


def dies_at_five(number):
    if number == 5:
        os._exit(9)
    return number


def pid(number):
    return number, os.getpid()


PIPELINES = {
    "plain": feed(range(37)).map(square).batch(4),
    "shuffled": feed(range(37), seed=3).shuffle(10).map(image).shuffle(7).batch(4),
    "draws": feed(range(23), seed=1).map(noise).map(draw_torch).shuffle(50).batch(4),
    "global": feed(range(23)).map(draw_python).map(draw_numpy).batch(4, drop_last=True),
    "filters": feed(range(41)).map(noise).filter(lambda number: int(number) % 3).shuffle(9).batch(4).map(torch.neg),
    "grouped": feed(range(30)).map_batches(sums, size=4).map(noise).batch(6),
    "singles": feed(range(30)).shuffle(8).map(square),
    "skips": feed(range(30), skip=1).map(fails_at_five).batch(4),
    "cached": feed(range(31))
    .map(draw_torch)
    .cache(memory_bytes=4000, disk_bytes=2000)
    .shuffle(9)
    .map(torch.neg)
    .batch(4),
}
