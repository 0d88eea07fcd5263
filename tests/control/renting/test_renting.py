"""What is rented follows the prices, through a real script that lists what was asked for; the clock is the test's."""

import time

import pytest

from dovetail.control.renting import Renting, RentingTerms
from dovetail.control.settings import Settings
from dovetail.control.state import State
from dovetail.describe.markets import MarketSource, show_time
from dovetail.engines.provisioning import CommandProvisioner
from dovetail.engines.provisioning.base import LABEL
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Device, Fingerprint, Kind, Node, Profile
from dovetail.vocabulary.events import TaskFingerprinted, TaskFinished, TrialMeasured
from dovetail.vocabulary.markets import RentalTerms
from tests.control.simulations import task, workload
from tests.engines.test_provisioning import SCRIPT, script

START = float(int(time.time()) - 3600)
TASKS = [task(name, steps=1000) for name in "ab"]
NOTHING = Cluster(kinds=(), nodes=(), devices=())


class Rents:
    """A renting on a state without devices, and its clock."""

    def __init__(self, folder, rows, text=SCRIPT, *, deadline=7200.0):
        self.now, self.folder, self.events = START + 60.0, folder, []
        lines = [f"{show_time(START + at)},fast,{zone},{market},{price}" for at, zone, market, price in rows]
        self.market = folder / "prices.csv"
        self.market.write_text("\n".join(["time,kind,zone,market,price", *lines]))
        self.state = State(
            workload(*TASKS),
            cluster=NOTHING,
            store=Store(None, write=True),
            settings=Settings(),
            now=lambda: self.now,
            may_grow=True,
        )
        terms = RentalTerms(deadline_seconds=deadline, move_seconds=10.0, lost_seconds=10.0)
        self.renting = Renting(
            self.state,
            market=MarketSource(str(self.market)),
            provisioner=CommandProvisioner(script(folder, text)),
            terms=RentingTerms(most={"fast": 1}, rental=terms, period_seconds=60.0),
        )

    def tell(self, row):
        """A price changes."""
        at, zone, market, price = row
        with self.market.open("a") as file:
            file.write(f"\n{show_time(START + at)},fast,{zone},{market},{price}")

    def learn(self):
        """What is known of the tasks once they were built and measured."""
        profile = Profile(family="f", kind="fast", count=1, step_seconds=1.0, peak_bytes=1)
        found = [
            TaskFingerprinted(task=each.identity, at_seconds=self.now, fingerprint=Fingerprint(family="f"))
            for each in TASKS
        ]
        measured = TrialMeasured(task=TASKS[0].identity, at_seconds=self.now, profile=profile)
        self.state.ledger.record([*found, measured])

    def join(self, name, *, kind="fast", number=0):
        """A node that was started under this name joins."""
        part = Cluster(
            kinds=(Kind(name=kind, processor="cpu"),),
            nodes=(Node(name=f"n{number}", cores=1, memory_bytes=1 << 30, labels={LABEL: name}),),
            devices=(Device(name=f"n{number}:0", kind=kind, node=f"n{number}", index=0),),
        )
        self.state.join([f"n{number}:0"], cluster=part)

    def turn(self, *, after=60.0):
        """Let time pass, and the thread answer twice: what was asked is done before it is listed."""
        self.now += after
        before = len(self.events)
        for _ in range(2):
            self.events += self.renting.step()
            if self.renting._call is not None:
                self.renting._call.exception()
            self.events += self.renting.step()
        return [event.kind for event in self.events[before:]]

    @property
    def listed(self):
        nodes = self.folder / "nodes"
        return sorted(path.read_text().strip() for path in nodes.iterdir()) if nodes.exists() else []


CHEAP_A = [(0, "a", "spot", 0.3), (0, "a", "on demand", 1.0), (0, "b", "spot", 0.5)]


def test_it_rents_the_cheapest_moves_when_that_repays_and_gives_all_back(tmp_path):
    rents = Rents(tmp_path, CHEAP_A)
    assert "rented" in rents.turn()
    (first,) = rents.listed
    assert first.endswith(",fast,a,spot,")
    rents.join(first.partition(",")[0])
    rents.learn()
    assert rents.turn() == []
    rents.now = START + 1000.0
    rents.tell((1000, "b", "spot", 0.01))
    rents.turn()
    assert len(rents.listed) == 2  # the old one stays until the new one is there
    (second,) = set(rents.listed) - {first}
    assert second.endswith(",fast,b,spot,")
    rents.join(second.partition(",")[0], number=1)
    assert rents.turn() == ["leaving"]
    assert rents.events[-1].node == "n0"
    assert [event.kind for event in rents.renting.emptied("n0")] == ["returned_node"]
    rents.state.leave(["n0:0"])
    rents.turn()
    assert rents.listed == [second]
    rents.state.ledger.record(TaskFinished(task=each.identity, at_seconds=rents.now, step=1000) for each in TASKS)
    assert rents.turn() == ["leaving"]
    (returned,) = rents.renting.emptied("n1")
    lasted = rents.now - next(e.at_seconds for e in rents.events if e.kind == "rented" and e.zone == "b")
    assert returned.spend == pytest.approx(0.01 * lasted / 3600)
    rents.renting.close()
    assert rents.listed == []


def test_what_does_not_come_is_named_and_rented_elsewhere(tmp_path):
    rents = Rents(tmp_path, CHEAP_A)
    rents.turn()
    rents.turn()
    (warned,) = [event for event in rents.events if event.kind == "warned"]
    assert "was asked for as fast in a, spot; it has not joined the cluster within 55 s" in warned.message
    assert [line.split(",")[2] for line in rents.listed] == ["b"]
    rents.renting.close()


def test_another_kind_than_asked_for_is_given_back(tmp_path):
    rents = Rents(tmp_path, CHEAP_A)
    rents.turn()
    rents.join(rents.listed[0].partition(",")[0], kind="slow")
    rents.turn()
    assert any("its devices are of kind slow" in getattr(event, "message", "") for event in rents.events)
    assert any(event.kind == "leaving" and event.node == "n0" for event in rents.events)
    rents.renting.close()


def test_a_provisioner_that_fails_is_named_once_and_tried_elsewhere(tmp_path):
    refuses = SCRIPT.replace("start) echo", 'start) [ "$4" = b ] || { echo no quota >&2; exit 1; }; echo')
    rents = Rents(tmp_path, CHEAP_A, refuses)
    rents.turn()
    rents.turn(after=20.0)
    assert any("no quota" in getattr(event, "message", "") for event in rents.events)
    assert [line.split(",")[2] for line in rents.listed] == ["b"]
    rents.renting.close()


def test_a_notice_of_the_provisioner_empties_the_node(tmp_path):
    rents = Rents(tmp_path, CHEAP_A)
    rents.turn()
    name = rents.listed[0].partition(",")[0]
    rents.join(name)
    rents.learn()
    (tmp_path / "nodes" / name).write_text(f"{name},fast,a,spot,120\n")
    assert rents.turn()[0] == "leaving"
    (leaving,) = [event for event in rents.events if event.kind == "leaving"]
    assert (leaving.node, leaving.reason) == ("n0", "reclaimed")
    rents.renting.close()


def test_a_deadline_that_is_near_is_kept_on_demand(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, deadline=2100.0)  # of which the work takes 2000
    rents.turn()
    rents.join(rents.listed[0].partition(",")[0])
    rents.learn()
    rents.turn()
    assert any(line.endswith(",fast,a,on-demand,") for line in rents.listed)
    rents.renting.close()


def test_a_node_that_an_earlier_controller_has_started_is_taken_over(tmp_path):
    rents = Rents(tmp_path, CHEAP_A)
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes" / "old").write_text("old,fast,a,spot,\n")
    rents.join("old")
    rents.turn()
    assert rents.listed == ["old,fast,a,spot,"]
    rents.renting.close()
    assert rents.listed == []
