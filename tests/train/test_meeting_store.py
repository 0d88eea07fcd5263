"""Ranks on several nodes look whether they can reach one another: a closed port is refused, a rank that has ended is
not taken for one."""

import contextlib
import datetime
import json
import socket
import threading

import pytest
from torch import distributed

from dovetail.engines.private_folder import PrivateFolder
from dovetail.engines.ray.meetings import Meetings
from dovetail.train.meeting_store import SCHEME, MeetingStore, refuse_unreachable
from dovetail.vocabulary import TechniqueRefused


@pytest.fixture
def url():
    """Where the ranks of one order meet."""
    folder = PrivateFolder("meetings-")
    meetings = Meetings(folder.path)
    meetings.begin("order")
    with contextlib.closing(folder), contextlib.closing(meetings):
        yield f"{SCHEME}{meetings.address}#order"


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class WalledStore(MeetingStore):
    """That of a rank behind a firewall: at the port that it names nobody can come in."""

    def set(self, key, value):
        if key.startswith("reach/"):
            value = json.dumps({**json.loads(value), "port": closed_port()})
        super().set(key, value)


def store_of(url, kind=MeetingStore, *, seconds=20.0):
    return kind(url, timeout=datetime.timedelta(seconds=seconds))


def look(url, kinds, found):
    """Have ranks look at one another, each on a node of its own, and put what they raise into `found`."""

    def one(rank, kind):
        try:
            refuse_unreachable(store_of(url, kind), rank=rank, size=len(kinds), node=f"n{rank}", address="127.0.0.1")
        except TechniqueRefused as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=one, args=each) for each in enumerate(kinds)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=60)
        assert not each.is_alive()


def test_ranks_that_reach_one_another_go_on(url):
    found = {}
    look(url, [MeetingStore] * 3, found)
    assert found == {}


def test_all_refuse_where_a_port_is_closed(url):
    found = {}
    look(url, [MeetingStore, WalledStore, MeetingStore], found)
    assert found.keys() == {0, 1, 2}
    assert all("to node n1, at 127.0.0.1 port" in each and "a firewall?" in each for each in found.values())


def test_a_rank_that_has_ended_is_no_closed_port(url):
    # As far as a rank comes that is killed: it has said where it listens, and perhaps that it has looked.
    place = {"address": "127.0.0.1", "port": closed_port(), "node": "n1"}
    ended = store_of(url)
    ended.set("reach/1", json.dumps(place))
    ended.set("looked/1", "")
    with pytest.raises(distributed.DistStoreError, match="nobody has said 'alive/1'"):
        refuse_unreachable(store_of(url, seconds=0.5), rank=0, size=2, node="n0", address="127.0.0.1")
