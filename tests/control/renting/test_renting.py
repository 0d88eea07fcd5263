"""What is rented follows the prices, through a real script that lists what was asked for; the clock is the test's."""

import concurrent.futures
import dataclasses
import os
import threading
import time

import pytest

from dovetail.control.daemon.requests import Requests
from dovetail.control.daemon.submissions import Submission
from dovetail.control.deciding.scheduling import Scheduling
from dovetail.control.renting import Renting, RentingTerms
from dovetail.control.settings import Settings
from dovetail.control.state import State
from dovetail.describe.markets import MarketSource, show_time
from dovetail.engines.provisioning import CommandProvisioner, Provisioner
from dovetail.engines.provisioning.base import LABEL
from dovetail.planning import PLANNERS
from dovetail.store import Store
from dovetail.vocabulary import Cluster, Device, Fingerprint, Kind, Node, NoFeasiblePlan, Profile, Stop
from dovetail.vocabulary.events import TaskDescribed, TaskFingerprinted, TaskFinished, TrialMeasured
from dovetail.vocabulary.markets import RentalTerms
from tests.control.simulations import task, workload
from tests.engines.test_provisioning import SCRIPT, script

START = float(int(time.time()) - 3600)
TASKS = [task(name, steps=1000) for name in "ab"]
NOTHING = Cluster(kinds=(), nodes=(), devices=())


def lasting(steps):
    """The tasks, with so many steps to make."""
    return tuple(dataclasses.replace(each, stop=Stop(steps=steps)) for each in TASKS)


class Rents:
    """A renting on a state without devices, and its clock."""

    def __init__(self, folder, rows, text=SCRIPT, *, deadline=7200.0, move=10.0, most=1, period=60.0, provisioner=None):
        self.now, self.folder, self.events = START + 60.0, folder, []
        lines = [f"{show_time(START + at)},fast,{zone},{market},{price}" for at, zone, market, price in rows]
        self.market = folder / "prices.csv"
        self.market.write_text("\n".join(["time,kind,zone,market,price", *lines]))
        self.store = Store(None, write=True)
        self.state = State(
            workload(*TASKS),
            cluster=NOTHING,
            store=self.store,
            settings=Settings(),
            now=lambda: self.now,
            may_grow=True,
        )
        terms = RentalTerms(deadline_seconds=deadline, move_seconds=move, lost_seconds=10.0)
        self.renting = Renting(
            self.state,
            market=MarketSource(str(self.market)),
            provisioner=provisioner or CommandProvisioner(script(folder, text)),
            terms=RentingTerms(most={"fast": most}, rental=terms, period_seconds=period),
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
        """Let time pass, and what is asked be answered, also what follows from that."""
        self.now += after
        before = len(self.events)
        self.events += self.renting.step()
        while calls := [*self.renting._provider._made, *self.renting._prices._made]:
            concurrent.futures.wait([call.future for call in calls])
            self.events += self.renting.step()
        return [event.kind for event in self.events[before:]]

    @property
    def warnings(self):
        return [event.message for event in self.events if event.kind == "warned"]

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


def test_what_takes_as_long_to_come_as_a_move_is_said_to_is_waited_for(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, move=150.0)
    rents.turn()
    rents.turn()
    rents.turn()
    (warned,) = [event for event in rents.events if event.kind == "warned"]
    assert "within 55 s. It is waited for until 150 s are over" in warned.message
    assert [line.split(",")[2] for line in rents.listed] == ["a"]
    rents.turn()
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
    rents = Rents(tmp_path, CHEAP_A, deadline=2120.0)  # of which the work takes 2000
    rents.turn()
    rents.join(rents.listed[0].partition(",")[0])
    rents.learn()
    rents.turn()
    assert any(line.endswith(",fast,a,on-demand,") for line in rents.listed)
    assert rents.warnings == []
    name = next(line.partition(",")[0] for line in rents.listed if "on-demand" in line)
    rents.join(name, number=1)
    rents.turn()  # with less than a move to spare, but it has been made
    assert [event.node for event in rents.events if event.kind == "leaving"] == ["n0"]
    assert rents.warnings == []
    rents.renting.close()


def test_a_deadline_that_cannot_be_met_is_said_once_with_when_and_by_how_much(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, deadline=1500.0)  # the work takes 2000
    rents.turn()
    rents.join(rents.listed[0].partition(",")[0])
    assert rents.warnings == []  # nothing is known yet
    rents.learn()
    rents.turn()
    (message,) = rents.warnings
    due, end = show_time(START + 120.0 + 1500.0), show_time(rents.now + 2010.0)
    assert message.startswith(
        f"a deadline must be one that can be met on demand; {due} cannot: the fastest offer, 1 × "
    )
    assert f"1 × fast in a, on demand, is done at {end}, 9 min 30 s late." in message
    assert "Give a later deadline (--objective), more devices (--cluster) or less work." in message
    rents.turn()
    assert rents.warnings == [message]
    rents.renting.close()


def test_tasks_with_which_the_deadline_cannot_be_met_are_refused(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, deadline=7200.0)
    requests = Requests(
        rents.state,
        store=rents.store,
        deciding=Scheduling(rents.state, planner=PLANNERS["list"]),
        admit=rents.renting.admit,
    )

    def submit(steps):
        requests.take_on(Submission(workload="submitted", tasks=lasting(steps)))
        return [rents.state.tasks[each.identity].stop.steps for each in TASKS]

    described = [TaskDescribed(task=each.identity, at_seconds=rents.now) for each in TASKS]
    rents.state.ledger.record(described, tasks=[("submitted", each) for each in TASKS])
    rents.learn()
    rents.turn()
    with pytest.raises(
        NoFeasiblePlan, match=r"be met on demand; .* cannot: .* 1 × fast in a, on demand, is done at .*"
    ):
        rents.renting.admit([task("c", steps=1), *lasting(4000)])
    rents.renting.admit([task("c", steps=10**9)])  # of which nothing is known
    rents.state.ledger.record(TaskFinished(task=each.identity, at_seconds=rents.now, step=1000) for each in TASKS)
    with pytest.raises(NoFeasiblePlan, match=r"late. Give a later deadline \(--objective\), more devices"):
        submit(5000)
    assert not rents.state.pending()
    assert submit(4000) == [4000, 4000]
    rents.renting.close()


def test_a_node_that_is_asked_for_is_judged_when_it_is_due_however_seldom_is_asked(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, period=300.0, move=150.0)
    rents.turn()
    assert rents.renting.wake_seconds() == rents.now + 55.0
    rents.turn(after=55.0)
    (message,) = rents.warnings
    assert "has not joined the cluster within 55 s. It is waited for until 150 s are over (--move)" in message
    assert rents.renting.wake_seconds() == rents.now + 95.0
    rents.turn(after=95.0)
    assert "within 150 s. It is given back." in rents.warnings[1]
    assert [line.split(",")[2] for line in rents.listed] == ["b"]
    rents.renting.close()


def test_less_than_was_asked_for_is_named(tmp_path):
    less = SCRIPT.replace("start) echo", "start) case $2 in *-3) exit 0 ;; esac; echo")
    rents = Rents(tmp_path, CHEAP_A, less, most=2, deadline=1150.0, move=60.0)  # two devices need 1000
    rents.turn()
    rents.join(rents.listed[0].partition(",")[0])
    rents.learn()
    rents.turn()
    _, there, missing = [event.name for event in rents.events if event.kind == "rented"]
    assert [line for line in rents.listed if "on-demand" in line] == [f"{there},fast,a,on-demand,"]
    rents.join(there, number=1)
    rents.turn(after=55.0)
    assert rents.warnings == [
        f"node {missing} was asked for as fast in a, on demand; it has not joined the cluster within 55 s (1 of 2 such "
        "nodes have). It is waited for until 60 s are over (--move)."
    ]
    rents.renting.close()


def test_another_market_than_asked_for_is_given_back(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, SCRIPT.replace("$4,$5,", "$4,on-demand,"))
    rents.turn()
    assert (
        "was asked for as fast in a, spot; it is listed as fast in a, on demand. It is given back." in rents.warnings[0]
    )
    rents.renting.close()
    assert rents.listed == []


class Hangs(Provisioner):
    """Never has a node asked for until it is let go, or raises what it must not."""

    def __init__(self, error=None):
        self.goes_on, self.error = threading.Event(), error

    def start(self, name, market):
        if self.error is not None:
            raise self.error
        self.goes_on.wait(60)

    def stop(self, name):
        pass

    def nodes(self):
        return []


def test_a_provisioner_that_hangs_is_named_within_a_minute(tmp_path):
    provisioner = Hangs()
    rents = Rents(tmp_path, CHEAP_A, provisioner=provisioner)
    while not any(event.kind == "rented" for event in rents.events):
        rents.events += rents.renting.step()
    assert rents.renting.step() == []
    rents.now += 55.0
    said = [getattr(event, "message", "") for event in rents.renting.step()]
    assert any(
        "the provisioner must answer 'start dovetail-" in each and "within 55 s; it has not" in each for each in said
    )
    assert rents.renting.step() == []
    provisioner.goes_on.set()
    rents.renting.close()


def test_what_a_provisioner_of_others_raises_is_named_and_ends_nothing(tmp_path):
    rents = Rents(tmp_path, CHEAP_A, provisioner=Hangs(KeyError("quota")))
    rents.turn()
    assert rents.warnings[0].endswith("', or raise DovetailError; it raised KeyError('quota').")
    assert [event.zone for event in rents.events if event.kind == "rented"] == ["a", "b", "a"]  # what is left, by price
    rents.renting.close()


def test_a_market_that_hangs_is_named_within_a_minute_and_keeps_no_notice_back(tmp_path):
    rents = Rents(tmp_path, CHEAP_A)
    rents.turn()
    name = rents.listed[0].partition(",")[0]
    rents.join(name)
    rents.learn()
    rents.market.unlink()
    os.mkfifo(rents.market)
    rents.market.rename(tmp_path / "fifo")
    asked = tmp_path / "asked"
    rents.market.write_text(f"[ -e {asked} ] || {{ touch {asked}; read line < {tmp_path / 'fifo'}; }}; echo hello")
    rents.renting._market = MarketSource(f"sh {rents.market}")
    (tmp_path / "nodes" / name).write_text(f"{name},fast,a,spot,120\n")
    rents.now += 60.0
    rents.events += rents.renting.step()
    until = time.monotonic() + 300.0
    while not any(event.kind == "leaving" for event in rents.events):
        assert time.monotonic() < until
        rents.events += rents.renting.step()
    rents.now += 55.0
    said = [getattr(event, "message", "") for event in rents.renting.step()]
    assert "the market must answer 'prices' within 55 s; it has not. It is waited for." in said
    (tmp_path / "fifo").write_text("go on\n")
    rents.turn()
    assert any("must have the columns" in message for message in rents.warnings)
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
