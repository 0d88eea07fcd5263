"""Whether a training's loader is worth reading by a feed's workers: seen from what a trial without them has found, and
from reading a few batches."""

import dataclasses
import time
from typing import Any

from torch.utils.data import DataLoader

from dovetail.engines.feeding import FeedRoom, TrainingLoad
from dovetail.feeds.definition import SOURCE
from dovetail.feeds.item_bytes import item_bytes
from dovetail.feeds.loader_feed import FETCH, draws_globally, explain_refusal
from dovetail.train.base import Training
from dovetail.vocabulary import Profile, StageProfile

# Where a step waits for its loader for more than this share of its time, and for so long, reading by workers may be
# tried: less is taken by handing batches over.
WAITING, LEAST_WAIT_SECONDS = 0.2, 2e-3
# So long is a loader read to know what a batch takes; and a step must then be expected to take this share at most.
READING_SECONDS, CLEARLY = 0.3, 0.9


def waits_for_loader(training: Training, profile: Profile) -> bool:
    """Whether a training's steps wait for its loader, which workers of a feed could read to the bit."""
    if profile.waits_seconds < max(LEAST_WAIT_SECONDS, WAITING * profile.step_seconds):
        return False
    return isinstance(training.batches, DataLoader) and not explain_refusal(training.batches)


def loader_stages(training: Training) -> tuple[StageProfile, ...]:
    """What reading a batch of a training's loader takes, as a stage of threads and of processes, from reading a few
    here."""
    loader: Any = training.batches
    here = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
    batches, size = 0, 0
    began, cpu_began = time.perf_counter(), time.thread_time()
    for batch in here:
        batches += 1
        size = max(size, item_bytes(batch))
        if time.perf_counter() - began > READING_SECONDS:
            break
    taken, busy = time.perf_counter() - began, time.thread_time() - cpu_began
    one = StageProfile(
        name=FETCH,
        worker="thread",
        service_seconds=taken / batches,
        cpu_seconds=busy / batches,
        lock_seconds=busy / batches,  # whether it is freed on the way is not known
        item_bytes=size,
        most_bytes=size,
    )
    source = dataclasses.replace(one, name=SOURCE, service_seconds=1e-6, cpu_seconds=1e-6, lock_seconds=1e-6)
    process = dataclasses.replace(one, worker="process", lock_seconds=0.0)
    # What draws from global generators has them for itself in a process only.
    return (source, process) if draws_globally(loader) else (source, one, process)


def may_be_faster(profile: Profile, stages: tuple[StageProfile, ...], *, room: FeedRoom, load: TrainingLoad) -> bool:
    """Whether steps are expected to be clearly faster where feeds with these stages, each with this room, read their
    batches."""
    return profile.accumulate / load.predict(stages, room) < CLEARLY * profile.step_seconds
