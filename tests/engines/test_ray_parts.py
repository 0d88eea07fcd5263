"""What the engine `ray` is made of, without Ray: the cluster it describes, the code it ships, the host of a node."""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import dovetail
from dovetail import describe
from dovetail.engines import MemberOrder, Order
from dovetail.engines.private_folder import PrivateFolder, ensure_private
from dovetail.engines.processes import WorkerProcess
from dovetail.engines.ray.autoscaler import AutoscalerProvisioner
from dovetail.engines.ray.cluster_survey import check_look, described, read_look
from dovetail.engines.ray.connection import _authenticated, _own_cluster, _private_files
from dovetail.engines.ray.host import Host
from dovetail.engines.ray.host_link import HostLink, RemoteWorker
from dovetail.engines.ray.node_links import _NodeProbe, _pairs_apart
from dovetail.engines.ray.shipped_code import Shipment, import_from, pack, take
from dovetail.engines.ray.warming import WarmingNode
from dovetail.engines.worker import READY
from dovetail.testing.engines import write_program
from dovetail.vocabulary import (
    Cluster,
    Device,
    DovetailError,
    Kind,
    Node,
    Program,
    Stop,
    Task,
    dumps,
    from_json,
    to_json,
)
from dovetail.vocabulary.markets import Market

CPU = Cluster.uniform(Kind(name="cpu-xeon", processor="cpu"), devices_per_node=4)
H200 = Cluster(
    kinds=(Kind(name="h200", processor="cuda", memory_bytes=140 << 30),),
    nodes=(Node(name="n0", cores=16, memory_bytes=64 << 30),),
    devices=tuple(Device(name=f"n0:{n}", kind="h200", node="n0", index=n + 2) for n in range(2)),
)


def test_ray_is_imported_here_alone():
    package = Path(dovetail.__file__).parent
    imports = re.compile(r"^\s*(import|from) ray\b", re.MULTILINE)
    found = {file.parent for file in package.rglob("*.py") if imports.search(file.read_text())}
    assert found == {package / "engines" / "ray"}


def node(number, **resources):
    named = {key.replace("__", ":"): value for key, value in resources.items()}
    return {"NodeID": number, "NodeManagerHostname": f"machine-{number[0]}", "Resources": named}


def found(cluster, cores=(0, 1, 2, 3)):
    return {"cluster": to_json(cluster), "cores": list(cores)}


def test_cores_are_devices_where_there_is_nothing_better():
    cluster, numbers = described([node("a", CPU=2.0), node("b", CPU=1.0)], [found(CPU), found(CPU)])
    assert [(d.name, d.kind, d.index) for d in cluster.devices] == [
        ("n0:0", "cpu-xeon", 0),
        ("n0:1", "cpu-xeon", 1),
        ("n1:0", "cpu-xeon", 0),
    ]
    assert numbers == {"n0": "a", "n1": "b"}
    assert [each.cores for each in cluster.nodes] == [2, 1]


def test_nodes_on_one_machine_share_its_cores_out():
    cluster, _ = described([node("a1", CPU=2.0), node("a2", CPU=1.0), node("a3", CPU=2.0)], [found(CPU)] * 3)
    assert [device.index for device in cluster.devices] == [0, 1, 2, 3, 0]


def test_a_head_that_only_leads_has_no_devices():
    cluster, numbers = described([node("a", memory=1e9), node("b", CPU=1.0)], [found(CPU), found(CPU)])
    assert [device.name for device in cluster.devices] == ["n0:0"]
    assert numbers == {"n0": "b"}


def test_accelerators_are_what_their_node_detects():
    cluster, _ = described([node("a", CPU=16.0, GPU=2.0, accelerator_type__H200=1.0)], [found(H200)])
    assert [(d.kind, d.index) for d in cluster.devices] == [("h200", 2), ("h200", 3)]
    assert cluster.kinds == H200.kinds
    assert cluster.nodes[0].cores == 16


def test_accelerators_that_a_node_cannot_look_at_are_what_ray_says():
    cluster, _ = described([node("a", CPU=8.0, GPU=1.0, accelerator_type__V100=1.0)], [found(CPU)])
    (kind,) = cluster.kinds
    assert (kind.name, kind.processor, kind.memory_bytes) == ("v100", "cuda", 16 << 30)


def test_a_custom_resource_names_the_kind():
    nodes = [node("a", CPU=1.0, kind__fast=1.0), node("b", CPU=1.0, kind__slow=1.0)]
    cluster, _ = described(nodes, [found(CPU), found(CPU)])
    assert [kind.name for kind in cluster.kinds] == ["fast", "slow"]
    assert [device.kind for device in cluster.devices] == ["fast", "slow"]


def shipped(folder, reference):
    pack([describe.program(reference)], folder)
    return Shipment(folder)


def relocated(shipment, program):
    task = Task(name="a", program=program, stop=Stop(steps=5))
    order = to_json(Order(name="o", purpose="train", members=(MemberOrder(task=task),), devices=("n0:0",)))
    shipment.relocate(order)
    return from_json(Program, order["members"][0]["task"]["program"])


@pytest.fixture
def program(tmp_path):
    home = tmp_path / "here"
    home.mkdir()
    (home / "sweep.py").write_text("from model import build\n\n\ndef tiny():\n    return build()\n")
    (home / "model.py").write_text("def build():\n    return 1\n")
    (home / "other.py").write_text("secret = 1\n")
    return f"{home}/sweep.py:tiny"


def test_the_files_that_a_program_reaches_are_shipped_and_no_others(tmp_path, program):
    shipped(tmp_path / "shipment", program)
    assert {path.name for path in (tmp_path / "shipment" / "code-0").iterdir()} == {"sweep.py", "model.py"}
    assert (tmp_path / "shipment" / "dovetail" / "engines" / "worker.py").is_file()


def test_a_program_that_is_the_same_on_the_node_stays_where_it_is(tmp_path, program):
    named = Program(reference=program)
    assert relocated(shipped(tmp_path / "shipment", program), named) == named


@pytest.mark.parametrize(
    "change", [lambda file: file.unlink(), lambda file: file.write_text("def build():\n    pass\n")]
)
def test_a_program_that_is_missing_or_another_is_taken_from_the_shipment(tmp_path, program, change):
    pack([Program(reference=program)], tmp_path / "shipment")
    change(Path(program).with_name("model.py"))
    there = relocated(Shipment(tmp_path / "shipment"), Program(reference=program))
    assert there.reference == f"{tmp_path}/shipment/code-0/sweep.py:tiny"


def test_packages_are_shipped_with_what_is_around_them(tmp_path):
    shipped(tmp_path, "tests.engines.programs:tower")
    (entry,) = json.loads((tmp_path / "shipment.json").read_text())["entries"]
    assert set(entry["files"]) == {"tests/__init__.py", "tests/engines/__init__.py", "tests/engines/programs.py"}


def test_a_package_that_is_another_on_the_node_is_taken_from_the_shipment(tmp_path, monkeypatch):
    package = tmp_path / "project" / "shipped_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("def build():\n    return 1\n")
    monkeypatch.syspath_prepend(str(package.parent))
    found = describe.program("shipped_package.model:build")
    pack([found], tmp_path / "shipment")
    assert relocated(Shipment(tmp_path / "shipment"), found).root == str(package.parent)
    (package / "model.py").unlink()
    there = relocated(Shipment(tmp_path / "shipment"), found)
    assert there.root == f"{tmp_path}/shipment/code-0"
    assert describe.program(there) == dataclasses.replace(found, root=there.root)


def test_a_shipment_is_taken_whole_or_not_at_all(tmp_path, program, monkeypatch):
    monkeypatch.setattr("dovetail.engines.ray.shipped_code._PAUSE_SECONDS", 0.01)
    folder, missing = tmp_path / "shipment", tmp_path / "missing.py"
    pack([Program(reference=program)], folder)
    one = folder / "dovetail" / "engines" / "worker.py"
    one.rename(missing)
    with monkeypatch.context() as few:
        few.setattr("dovetail.engines.ray.shipped_code._TRIES", 2)
        with pytest.raises(DovetailError, match="whole"):
            take(folder, inside=tmp_path)
    assert not list(tmp_path.glob("dovetail-*"))
    threading.Timer(0.1, missing.rename, [one]).start()  # unpacked while it is being copied
    own = take(folder, inside=tmp_path)
    shutil.rmtree(folder)
    assert (own / "dovetail" / "engines" / "worker.py").is_file()


def test_workers_import_from_the_copy_and_not_from_where_it_came(tmp_path, monkeypatch):
    shared, own = tmp_path / "shared", tmp_path / "own"
    monkeypatch.setattr(sys, "path", ["/first", str(shared), "/last"])
    import_from(own, instead_of=shared)
    assert sys.path == ["/first", str(own), "/last"]


def test_a_private_folder_is_this_users_alone_and_is_removed_once_nobody_holds_it(tmp_path):
    one, other = (PrivateFolder("a-", root=tmp_path) for _ in range(2))
    assert {path.stat().st_mode & 0o777 for path in (one.path, other.path, one.path.parent)} == {0o700}
    left, new, stale = (one.path.with_name(name) for name in ("left", ".new-young", ".new-stale"))
    for path in (left, new, stale):
        path.mkdir()
    for path in (stale, other.path):
        os.utime(path, (1.0, 1.0))
    one.close()
    assert {path.name for path in one.path.parent.iterdir()} == {other.path.name, new.name}
    other.close()


@pytest.mark.parametrize("kind", ["open", "link", "file", "movable"])
def test_a_folder_that_others_may_have_made_or_may_enter_is_refused(tmp_path, kind):
    path = tmp_path / "root" / "folder"
    path.parent.mkdir()
    if kind == "open":
        path.mkdir()
        path.chmod(0o755)
    elif kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        path.touch(mode=0o600)
    else:
        path.parent.chmod(0o777)
    with pytest.raises(DovetailError, match="must be a folder"):
        ensure_private(path)


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(DovetailError, match=f"of user {os.getuid()}"):
        ensure_private(tmp_path / "folder")


def test_a_cluster_of_our_own_lies_where_nobody_else_can_enter(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "so deep that no socket could be named there"))
    with contextlib.ExitStack() as stack:
        folder = Path(_own_cluster(stack)["_temp_dir"])
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert len(str(folder)) < 43
        with _private_files():
            (folder / "made").touch()
        assert (folder / "made").stat().st_mode & 0o777 == 0o600
    assert not folder.exists()


def order_from(folder, reference):
    """The message with which a worker begins to train a program for five steps."""
    task = Task(name="a", program=Program(reference=reference), stop=Stop(steps=5))
    member = MemberOrder(task=task, attempt=1, until_step=5, directory=str(folder / "checkpoints"))
    order = Order(name="o", purpose="train", members=(member,), devices=("n0:0",))
    kind = {"kind": Kind(name="cpu", processor="cpu"), "threads": 1}
    return {"do": "order", "order": order, **kind, "home": str(folder), "ranks": None}


def heard_from(folder, message, monkeypatch, *, mark):
    """What is heard from a worker under a host, whose every call is made twice, as if its answer had not arrived, and
    whose shipment is gone soon."""
    monkeypatch.chdir(folder)  # the host moves, and this process must not stay there
    code = folder / "shipment"
    pack([], code)
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=1)
    given = {"cluster": cluster, "home": str(folder), "mark": str(mark), "environment": {"FROM_AFAR": "1"}}
    host = Host(dumps({**given, "patience_seconds": 1e6}).encode(), code)
    shutil.rmtree(code)
    assert os.environ.pop("FROM_AFAR") == "1"
    start = {"do": "start", "worker": 1, "devices": ["n0:0"]}
    begin = {"do": "begin", "worker": 1, "order": "o", "message": message}
    leave = {"do": "send", "worker": 1, "message": {"do": "exit"}}
    posts, have, heard = [(1, start), (2, begin)], 0, []
    for _ in range(2):
        host.post(dumps(posts).encode())
    until = time.monotonic() + 300
    while not any("gone" in message for message in heard) and time.monotonic() < until:
        first, again = (json.loads(host.pull(have))["messages"] for _ in range(2))
        assert again[: len(first)] == first
        have = first[-1][0] if first else have
        heard += [message for _, message in first]
        if any("released" in line for message in heard for line in message.get("lines", ())):
            host.post(dumps([*posts, (3, leave)]).encode())
    return heard


@pytest.mark.process
def test_a_host_loses_and_repeats_nothing_when_calls_are_made_again(tmp_path, monkeypatch):
    message = order_from(tmp_path, write_program(tmp_path))
    heard = heard_from(tmp_path, message, monkeypatch, mark=tmp_path)
    lines = [line for message in heard for line in message.get("lines", ())]
    assert [line["event"]["kind"] for line in lines if "event" in line].count("finished") == 1
    assert "exited with code 0" in heard[-1]["gone"]["reason"]
    assert [message["worker"] for message in heard if "process" in message] == [1]


@pytest.mark.process
def test_a_node_is_ready_once_its_workers_have_imported_what_orders_need_or_are_gone(tmp_path):
    cluster = Cluster.uniform(Kind(name="cpu", processor="cpu"), devices_per_node=1)
    worker = WorkerProcess(("n0:0",), cluster=cluster, log=tmp_path / "log")
    node = WarmingNode(cluster=cluster, workers=[worker])
    assert not node.is_ready()
    worker.preload("colorsys")
    until = time.monotonic() + 300
    while worker.doing != READY and time.monotonic() < until:
        worker.receive()
    assert node.is_ready()
    worker.doing = "importing torch"
    assert not node.is_ready()
    worker.kill("the test is over")
    worker.channel.close()
    assert worker.exited(10)
    assert node.is_ready()


PRINTING = """
import os

from tiny import tiny


def printing():
    print("first")
    os.write(1, b"no text: \\xff, much: " + 300_000 * b"x" + b"\\n")
    return tiny()
"""


@pytest.mark.process
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_an_order_prints_on_a_disk_of_its_nodes_own_comes_to_the_store(tmp_path, monkeypatch, is_shared):
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    (here / "logs").mkdir(parents=True)
    write_program(there)
    (there / "printing.py").write_text(PRINTING)
    message = order_from(there, f"{there}/printing.py:printing")
    worker = RemoteWorker(("n0:0",), link=SimpleNamespace(logs=here / "logs", post=lambda message: None), number=1)
    worker.begin("o", message)
    heard = heard_from(there, message, monkeypatch, mark=there if is_shared else there / "not seen")
    for each in heard:
        worker.handle(each)
    (written,) = (there / "logs").glob("order-*.log")
    assert b"first\nno text: \xff" in written.read_bytes()
    found = {path.name: path.read_bytes() for path in (here / "logs").iterdir()}
    assert found == ({} if is_shared else {written.name: written.read_bytes()})
    told = [number for number, each in enumerate(heard) if "printed" in each]
    released = [
        number for number, each in enumerate(heard) if any("released" in line for line in each.get("lines", ()))
    ]
    assert is_shared or max(told) < min(released), "the whole log is there before the end of its order is known"


def test_a_cluster_of_our_own_has_a_private_token(tmp_path, monkeypatch):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with _authenticated(tmp_path):
        assert os.environ["RAY_AUTH_MODE"] == "token"
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert token.stat().st_mode & 0o077 == 0
        assert len(token.read_text()) == 64
    assert not token.exists()
    assert "RAY_AUTH_MODE" not in os.environ


def test_authentication_cannot_be_switched_off(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(DovetailError, match="token authentication must stay on"), _authenticated(tmp_path):
        pass


class Gone:
    """Ray, and the host of a node that is gone: every call is answered with that."""

    class exceptions:
        class RayError(Exception):
            pass

        class ActorUnavailableError(RayError):
            pass

    def __init__(self):
        self.calls = itertools.count()
        self.pull = self.post = self

    def remote(self, *arguments):
        return next(self.calls)

    def get(self, call):
        raise self.exceptions.RayError("the actor died")


def test_calls_that_fail_together_lose_a_node_once():
    ray = Gone()
    link = HostLink("n1", ray=ray, host=ray, logs=Path(), silence_seconds=9.0)
    worker = link.start_worker(("n1:0",))
    calls = link.calls()
    assert len(calls) == 2
    for call in calls:
        link.take(call)
    assert worker.is_gone
    assert "the actor died" in link.lost


@pytest.mark.parametrize("answer", [b"no JSON", b"{}", b'{"clock": 1, "messages": [[1, {"worker": 7}]]}', b"[]"])
def test_what_a_host_sends_and_nobody_can_read_loses_its_node_and_nothing_else(answer):
    ray = Gone()
    link = HostLink("n1", ray=ray, host=ray, logs=Path(), silence_seconds=9.0)
    worker = link.start_worker(("n1:0",))
    ray.get = lambda call: answer
    link.take(link.calls()[0])
    assert worker.is_gone
    assert "what it sent cannot be read" in link.lost


def looked(*, ahead=0.0, unseen=0.0, **changes):
    here = {"ray": importlib.metadata.version("ray"), "python": platform.python_version(), "clock": time.time() + ahead}
    return read_look(dumps({**here, "guarded": True, "shares": [], **changes}).encode(), unseen_seconds=unseen)


def test_a_node_that_is_as_the_controller_is_taken():
    check_look("north", looked(), [])
    check_look("north", looked(ahead=-50), [])
    check_look("north", looked(ahead=-90, unseen=40), [])  # it has answered a while ago


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ray": "2.9.1"}, r"all nodes must have the same Ray; north has 2.9.1, the controller .*Install .* there"),
        ({"python": "3.8.2"}, r"all nodes must have the same Python; north has 3.8.2"),
        ({"ahead": 301}, r"that of north is 5 min . s ahead of the controller's. Set it by NTP"),
        ({"ahead": -115}, r"that of north is 1 min 5. s behind the controller's"),
        ({"ahead": -60}, r"that of north is 1 min 0 s behind the controller's"),
        ({"ahead": -62, "unseen": 1.5}, r"that of north is 1 min 0 s behind the controller's"),
        ({"guarded": False}, r"must have token authentication on; on north it is off"),
    ],
)
def test_a_node_that_cannot_be_used_is_named(changes, message):
    with pytest.raises(DovetailError, match=message):
        check_look("north", looked(**changes), [])


def test_an_autoscaler_that_cannot_be_asked_is_named_and_owes_nothing():
    pytest.importorskip("ray")
    provisioner = AutoscalerProvisioner()
    for ask in (provisioner.nodes, lambda: provisioner.start("one", Market(kind="fast", zone="a"))):
        with pytest.raises(DovetailError, match=r"must answer what its autoscaler is asked; found: .*Look at"):
            ask()
    provisioner.stop("one")  # which was never taken


def test_a_link_is_measured_and_strangers_are_not_listened_to():
    pytest.importorskip("ray")
    here, stranger = _NodeProbe("n0", b"0123456789abcdef"), _NodeProbe("n1", b"0" * 16)
    place = here.listen()
    link = here.measure("n0", place)
    assert link.bytes_per_second > 1e6
    assert 0 < link.latency_seconds < 1
    assert 0 <= time.time() - link.measured_seconds < 60
    with pytest.raises(DovetailError, match=rf"must reach one another by TCP; from n1 on .* to n0 at {place[0]} port"):
        stranger.measure("n0", place)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 16, 17])
def test_every_pair_of_few_nodes_is_measured_once(count):
    names = [f"n{number}" for number in range(count)]
    rounds = [_pairs_apart(names, distance) for distance in range(1, count // 2 + 1)]
    found = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, found)) == sorted(map(sorted, itertools.combinations(names, 2)))
