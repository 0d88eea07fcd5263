"""Feeds as the batches of trainings: resumed by position, whoever reads them, and read once for several."""

import pytest
import torch
from torch import nn

from dovetail.feeds import Cursor, Tap, draw
from dovetail.feeds.definition import feed
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.train.together import TOGETHER
from tests.feeds.feeds import equal, noise, plan, same

DEFINITION = feed(range(26), seed=4).shuffle(10).map(noise).batch(4)
CPU = torch.device("cpu")


def no_seeding(epoch, index):
    pass


def training(batches, width=3, **fields):
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(1, width), nn.Dropout(0.5), nn.Linear(width, 1))
    return Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: model(batch[:, None].float()).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        **fields,
    )


def weights(session):
    return [tensor.clone() for tensor in session.state().tensors.values()]


def test_a_cursor_takes_epoch_after_epoch():
    expected = [list(DEFINITION.epoch(epoch)) for epoch in range(3)]
    with DEFINITION.open(plan(DEFINITION, workers=2)) as running:
        for batches in (DEFINITION, running):
            cursor = Cursor(batches, before_draw=no_seeding)
            for epoch in range(3):  # seven batches, of which steps of two take six
                assert same([batch for _ in range(3) for batch in cursor.take(2)], expected[epoch][:6])


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8, 15])
def test_positions_are_one_readers_as_the_others(taken):
    batches = [batch for epoch in range(4) for batch in DEFINITION.epoch(epoch)]
    with DEFINITION.open(plan(DEFINITION, workers=2)) as running, DEFINITION.open() as another:
        for first, second in ((DEFINITION, running), (running, DEFINITION), (running, another)):
            cursor = Cursor(first, before_draw=no_seeding)
            cursor.restore({"epoch": 0, "index": 0, "digests": [], "batches": DEFINITION.open().state_dict()})
            for _ in range(taken):
                cursor.take(1)
            resumed = Cursor(second, before_draw=no_seeding)
            resumed.restore(cursor.state())
            assert same([resumed.take(1)[0] for _ in range(8)], batches[taken : taken + 8])


def test_training_is_the_same_by_workers_and_without():
    found = []
    for batches in (DEFINITION, DEFINITION.open(plan(DEFINITION, workers=2))):
        session = RESIDENT.open([SessionMember(training=training(batches))], device=CPU, threads=1)
        for _ in range(10):
            session.advance()
        found.append(weights(session))
        session.close()
    assert same(*found)


def test_training_goes_on_from_its_state_with_other_workers():
    one = RESIDENT.open([SessionMember(training=training(DEFINITION))], device=CPU, threads=1)
    for _ in range(4):
        one.advance()
    with DEFINITION.open(plan(DEFINITION, workers=3)) as running:
        other = RESIDENT.open([SessionMember(training=training(running))], device=CPU, threads=1)
        other.load(one.state())
        for _ in range(6):
            one.advance()
            other.advance()
        assert same(weights(one), weights(other))


def test_members_that_share_read_once():
    read = []

    def noted(number):
        read.append(number)
        return float(number)

    definition = feed(range(40)).map(noted).batch(4)
    members = [SessionMember(training=training(definition, width, shares="numbers"), seed=width) for width in (2, 3)]
    session = TOGETHER.open(members, device=CPU, threads=1)
    read.clear()
    for _ in range(5):
        session.advance([0, 1])
    assert len(read) == 20
    alone = RESIDENT.open([SessionMember(training=training(definition, 3), seed=3)], device=CPU, threads=1)
    for _ in range(5):
        alone.advance()
    assert same(list(session.state(1).tensors.values()), weights(alone))


def test_taps_over_running_feeds_draw_once_and_part():
    with DEFINITION.open(plan(DEFINITION, workers=2)) as one, DEFINITION.open(plan(DEFINITION)) as two:
        taps = [Tap(running, before_draw=no_seeding) for running in (one, two)]
        draw(taps, 2)
        first, second = (tap.take(2) for tap in taps)
        assert same(first, second)
        assert two.stats().batches == 0  # the other has read nothing itself
        assert equal(taps[1].take(1)[0], list(DEFINITION)[2])
        assert two.stats().batches == 1
