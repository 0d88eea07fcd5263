"""Trainings taken so many steps, alone, with a stop in between, or as one program."""

import contextlib

import torch

from dovetail.train import FUSE, RESIDENT, SessionMember

CPU = torch.device("cpu")


@contextlib.contextmanager
def opened(training, *, seed=0):
    members = [SessionMember(training=training, seed=seed)]
    with contextlib.closing(RESIDENT.open(members, device=CPU, threads=1)) as session:
        yield session


def losses_of(session, steps):
    return [float(session.advance()[0].loss) for _ in range(steps)]


def taken(training, steps, *, seed=0):
    with opened(training, seed=seed) as session:
        return losses_of(session, steps)


def resumed(build, steps, *, stop):
    """The losses of a training that is stopped, and goes on in another that is built anew."""
    with opened(build()) as first, opened(build()) as second:
        found = losses_of(first, stop)
        second.load(first.state())
        return found + losses_of(second, steps - stop)


def fused(trainings, steps):
    """The losses of each of several trainings that take their steps as one program."""
    members = [SessionMember(training=each, seed=0) for each in trainings]
    with contextlib.closing(FUSE.open(members, device=CPU, threads=1)) as session:
        rows = [[float(report.loss) for report in session.advance(range(len(trainings)))] for _ in range(steps)]
    return list(zip(*rows, strict=True))


def furthest_weights(one, other):
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((mine - its).detach().abs().max()) for mine, its in pairs)


def furthest(one, other):
    assert len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
