"""Data sets of shards: what they refuse, in which order they are read, how they resume, and what is learned of them."""

import dataclasses
import pickle

import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.feeds import Cursor, ShardReader
from dovetail.train import RESIDENT, SessionMember, Training
from dovetail.vocabulary import Fingerprint, ProgramError, dumps, loads
from dovetail.vocabulary.shards import ShardSet

NAMES = ("a", "b", "c")


def read(place):
    return torch.load(place)


def read_shuffled(place, seed):
    batches = torch.load(place)
    return batches[torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed))]


def no_seeding(epoch, index):
    pass


@pytest.fixture
def shards(tmp_path):
    """Three shards of unlike length."""
    pieces = []
    for number, name in enumerate(NAMES):
        batches = torch.randn(number + 2, 4, 2, generator=torch.Generator().manual_seed(number))
        torch.save(batches, tmp_path / name)
        pieces.append(dt.DataShard(name=name, path=str(tmp_path / name), batches=len(batches)))
    return dt.Shards(pieces, read=read, seed=5)


def training(batches, **fields):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))
    return Training(
        model=model,
        batches=batches,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        **fields,
    )


def session_of(batches):
    return RESIDENT.open([SessionMember(training=training(batches))], device=torch.device("cpu"), threads=1)


def test_a_definition_is_printed_compared_and_sent(shards):
    assert repr(shards) == "Shards(a, b, c; seed=5, order='seeded')"
    assert pickle.loads(pickle.dumps(shards)) == shards
    assert dataclasses.replace(shards, seed=6) != shards
    facts = shards.facts(accumulate=1)
    assert loads(ShardSet, dumps(facts)) == facts
    found = Fingerprint(family="f", shards=facts)
    assert loads(Fingerprint, dumps(found)) == found


def test_each_epoch_reads_each_shard_once_in_an_order_of_its_own(shards):
    orders = [shards.order_of(epoch) for epoch in range(20)]
    assert all(sorted(order) == list(NAMES) for order in orders)
    assert len(set(orders)) > 1
    assert [dataclasses.replace(shards, seed=6).order_of(epoch) for epoch in range(20)] != orders
    assert orders == [shards.facts().order_of(epoch) for epoch in range(20)]


def test_an_order_that_was_chosen_is_read(shards):
    chosen = dataclasses.replace(shards, order="any", chosen=(("c", "a", "b"),))
    assert chosen.order_of(0) == ("c", "a", "b")
    assert chosen.order_of(1) == shards.order_of(1)
    assert torch.equal(next(iter(chosen)), read(shards.facts()["c"].path)[0])


@pytest.mark.parametrize("reads", [read, read_shuffled])
@pytest.mark.parametrize("taken", range(20))
def test_positions_resume_exactly(shards, taken, reads):
    shards = dataclasses.replace(shards, read=reads)
    expected = [batch for epoch in range(4) for batch in shards.epoch(epoch)]
    cursor = Cursor(shards, before_draw=no_seeding)
    for _ in range(taken):
        cursor.take(1)
    resumed = Cursor(shards, before_draw=no_seeding)
    resumed.restore(cursor.state())
    assert all(torch.equal(resumed.take(1)[0], batch) for batch in expected[taken : taken + 12])


def test_only_the_shard_at_hand_is_opened(shards, tmp_path):
    first, second, third = shards.order_of(0)
    whole = {name: shards.facts()[name].batches for name in NAMES}
    cursor = Cursor(shards, before_draw=no_seeding)
    for name in (second, third):
        (tmp_path / name).rename(tmp_path / f"{name} elsewhere")
    cursor.take(whole[first])
    state = cursor.state()
    (tmp_path / first).unlink()
    (tmp_path / f"{second} elsewhere").rename(tmp_path / second)
    resumed = Cursor(shards, before_draw=no_seeding)
    resumed.restore(state)
    resumed.take(whole[second])
    with pytest.raises(ProgramError, match=f"shard '{third}' must be at .* it is not there"):
        resumed.take(1)


def test_hopping_learns_what_one_device_learns_bit_for_bit(shards):
    """A session a shard, each resumed from the state of the one before, as on nodes that have one shard each."""
    whole = session_of([batch for epoch in range(2) for batch in shards.epoch(epoch)])
    for _ in range(2 * len(shards)):
        whole.advance()
    state = None
    for epoch in range(2):
        for name in shards.order_of(epoch):
            session = session_of(shards)
            if state is not None:
                session.load(state)
            for _ in range(shards.facts().steps(name)):
                session.advance()
            state = session.state()
            session.close()
    expected = whole.state().tensors
    assert expected.keys() == state.tensors.keys()
    assert all(torch.equal(tensor, state.tensors[name]) for name, tensor in expected.items())


def test_a_state_of_other_shards_is_refused(shards):
    cursor = Cursor(shards, before_draw=no_seeding)
    cursor.take(1)
    other = dataclasses.replace(shards, chosen=(tuple(reversed(shards.order_of(0))),))
    with pytest.raises(ProgramError, match="must read shards in the order in which it began"):
        Cursor(other, before_draw=no_seeding).restore(cursor.state())


def test_here_are_the_shards_that_can_be_read_here(shards, tmp_path):
    (tmp_path / "b").unlink()
    assert [each.name for each in shards.keep_readable().shards] == ["a", "c"]
    for name in ("a", "c"):
        (tmp_path / name).unlink()
    with pytest.raises(ProgramError, match="a node that trains must have one of the task's shards; this one has none"):
        shards.keep_readable()


def piece(name="a", **fields):
    return dt.DataShard(name=name, **{"path": "/nowhere", "batches": 2, **fields})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dt.Shards([piece(), piece(path="/other")], read=read), "'a' is the name of /nowhere and /other"),
        (lambda: dt.Shards([], read=read), "must have at least one"),
        (lambda: dt.Shards(["a"], read=read), "must be given dt.DataShard pieces, got a str"),
        (lambda: dt.Shards([piece()], read=None), "must have a function read"),
        (lambda: dt.Shards([piece()], read=read, order="best"), "must be 'seeded' or 'any', got 'best'"),
        (lambda: dt.Shards([piece()], read=read, chosen=[("a", "b")]), "must have each of a once, got a, b"),
        (lambda: piece(name=""), "a shard must have a name"),
        (lambda: piece(url="s3://x/y"), "must have either a path .* or a url"),
        (lambda: piece(path=""), "must have either a path .* or a url"),
        (lambda: piece(batches=0), "must say how many batches it gives"),
        (lambda: piece(size_bytes=-1), "a size of at least 0 bytes, got -1"),
        (lambda: training(dt.Shards([piece(batches=3)], read=read), accumulate=2), "accumulate=2 does not divide"),
        (lambda: next(iter(dt.Shards([piece(node="site=left")], read=read))), "where 'site=left' says that it is"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make, words):
    with pytest.raises(ProgramError, match=words):
        make()


@pytest.mark.parametrize(("count", "words"), [(1, "gave 1"), (3, "gave more than 2")])
def test_a_shard_with_other_batches_than_it_says_is_named(tmp_path, count, words):
    torch.save(torch.zeros(count, 1), tmp_path / "a")
    shards = dt.Shards([piece(path=str(tmp_path / "a"))], read=read)
    with pytest.raises(ProgramError, match=words):
        list(ShardReader(shards))


def test_a_shard_that_may_be_copied_is_fetched_once_and_read_by_a_path(tmp_path):
    torch.save(torch.arange(3), tmp_path / "far.pt")
    url, places = f"file://{tmp_path}/far.pt", []

    def note(place):
        places.append(place)
        return torch.load(place.removeprefix("file://"))

    piece = dt.DataShard(name="far", url=url, batches=3, size_bytes=1, copy=True)
    near = dt.Shards([piece], read=note, copies=str(tmp_path / "copies"))
    assert [int(each) for each in near] == [0, 1, 2]
    (tmp_path / "far.pt").unlink()
    assert [int(each) for each in near] == [0, 1, 2], "the copy is read"
    assert set(places) == {next(str(path) for path in (tmp_path / "copies").glob("*.pt"))}
    with pytest.raises(ProgramError, match="must have a url and say its size_bytes to be copied"):
        dt.DataShard(name="near", path="/near.pt", batches=3, copy=True)


def test_a_copy_that_was_cut_short_is_made_again(tmp_path):
    torch.save(torch.arange(3), tmp_path / "far.pt")
    piece = dt.DataShard(name="far", url=f"file://{tmp_path}/far.pt", batches=3, size_bytes=1, copy=True)
    shards = dt.Shards([piece], read=read, copies=str(tmp_path / "copies"))
    first = int(next(iter(shards)))
    (path,) = (tmp_path / "copies").glob("*.pt")
    path.rename(path.with_suffix(".part"))
    path.with_suffix(".part").write_bytes(b"half")
    assert int(next(iter(shards))) == first
