"""Ray's own autoscaler as a provisioner: it starts and stops real nodes on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.describe.markets import show_time
from dovetail.engines.ray.autoscaler import AutoscalerProvisioner, resources_of
from dovetail.engines.ray.connection import OBJECT_STORE_BYTES, connected, installed
from dovetail.store import Store
from dovetail.testing.provisioners import SPOT, SURE, ProvisionerConformance
from tests.cli.processes import begin, dovetail
from tests.engines.ray.ray_clusters import PATIENCE_SECONDS, needs_ray, patiently, with_token

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    needs_ray,
    patiently,
]
# What Ray's provider of nodes on this machine takes its head to be; by another name, one head after another is begun.
HEAD = "ray.head.default"
EMPTY = {
    **{key: {} for key in ("auth", "docker", "file_mounts")},
    **{f"{who}setup_commands": [] for who in ("", "head_", "worker_")},
    **{f"{who}_start_ray_commands": [] for who in ("head", "worker")},
    **{key: [] for key in ("initialization_commands", "cluster_synced_files", "rsync_exclude", "rsync_filter")},
    "file_mounts_sync_continuously": False,
}


def config(address):
    """What Ray's configuration of a cloud says, of a provider that starts nodes here."""
    provider = {"type": "fake_multinode", "gcs_address": address}
    provider |= dict.fromkeys(("disable_node_updaters", "disable_launch_config_check", "use_node_id_as_ip"), True)
    most = {"node_config": {}, "min_workers": 0, "max_workers": 2}
    types = {str(market): {"resources": {"CPU": 1, **resources_of(market)}, **most} for market in (SPOT, SURE)}
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        **EMPTY,
        "cluster_name": "here",
        "max_workers": 2,
        "provider": provider,
        "head_node_type": HEAD,
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.05,
        "available_node_types": {**types, HEAD: head},
    }


@pytest.fixture(scope="module")
def head(shared, tmp_path_factory):
    """The address of a Ray cluster that begins with a head alone, and asks for a token."""
    import ray._private.services as services

    shared.close()  # one process is in one cluster
    home = tmp_path_factory.mktemp("autoscaler")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = f"{services.get_node_ip_address()}:{port}"
    (home / "config.json").write_text(json.dumps(config(address)))
    hurried = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=0", f"--port={port}"]
    options = ["--include-dashboard=false", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    with with_token(home):
        process = subprocess.Popen(
            [*command, *options, f"--autoscaling-config={home / 'config.json'}"], env=os.environ | hurried
        )
        try:
            await_listener(address, process)
            yield address
        finally:
            process.terminate()
            process.wait(60)


def await_listener(address, process):
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert process.poll() is None
        try:
            return socket.create_connection(address.split(":"), timeout=1).close()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.2)


@pytest.fixture
def provisioner(head, tmp_path):
    """Connected, and with no node yet; what it leaves is taken away."""
    with connected(head, programs=[], home=tmp_path):
        found = AutoscalerProvisioner()
        wait_for(found, 0)
        yield found
        for node in found.nodes():
            found.stop(node.name)


def wait_for(provisioner, count):
    """What is provided, once that many nodes have joined, or are left, and say what they have."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = provisioner.nodes()
        there = sum(bool(node["Alive"]) for node in installed().nodes()) - 1  # but for the head
        if there == count == sum(bool(node.number) for node in found):
            return found
        assert time.monotonic() < until, found
        time.sleep(0.5)


class TestAutoscaler(ProvisionerConformance):
    """Whoever asks Ray's autoscaler, with nodes that it starts and stops meanwhile."""


def test_nodes_are_asked_for_and_taken_away(provisioner):
    assert provisioner.nodes() == []
    provisioner.start("one", SPOT)
    (node,) = wait_for(provisioner, 1)
    assert (node.name, node.market) == ("one", SPOT)
    assert node.number in {each["NodeID"] for each in installed().nodes() if each["Alive"]}
    provisioner.stop("one")
    assert wait_for(provisioner, 0) == []
    provisioner.stop("one")


SWEEP = """
import torch
from torch import nn

import dovetail as dt


def tiny(seed=0):
    model = nn.Linear(4, 1)
    return dt.Training(
        model=model,
        batches=[torch.randn(8, 4)],
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
"""


def test_a_daemon_begins_with_no_node_rents_what_is_cheapest_and_gives_it_back(head, tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    began = show_time(time.time() - 60)
    rows = [f"{began},{SPOT.kind},{SPOT.zone},{market},{price}" for market, price in (("spot", 1), ("on demand", 3))]
    (tmp_path / "prices.csv").write_text("\n".join(["time,kind,zone,market,price", *rows, ""]))
    words = ["daemon", "--store", "store", "--engine", "ray", "--address", head, "--market", "prices.csv"]
    words += ["--provision", "autoscaler", "--cluster", f"1x{SPOT.kind}", "--objective", "spend:deadline=8h"]
    words += ["--every", "2s", "--move", "500s", "--techniques", "resident", "--quiet"]
    with begin(*words, cwd=tmp_path, env={**os.environ}) as daemon:
        try:
            assert "listening" in daemon.stderr.readline()
            found = dovetail("submit", "sweep.py:tiny", "seed=1", "--steps", "100", "--store", "store", cwd=tmp_path)
            assert found.code == 0, found.err
            await_return(tmp_path / "store", daemon)
        finally:
            dovetail("stop", "--store", "store", cwd=tmp_path)
            daemon.communicate(timeout=PATIENCE_SECONDS)
    with Store(tmp_path / "store") as store:
        events = [event for _, event in store.events()]
    assert [event.spot for event in events if event.kind == "rented"] == [True]
    assert [event.reason for event in events if event.kind == "returned_node"] == ["it is empty"]
    (joined,) = [event for event in events if event.kind == "joined" and not event.anew]
    assert [kind.name for kind in joined.cluster.kinds] == [SPOT.kind]


def await_return(home, daemon):
    """Until a task has finished, and everything that was rented is given back."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        with Store(home) as store:
            kinds = [event.kind for _, event in store.events()]
        if "finished" in kinds and kinds.count("rented") == kinds.count("returned_node"):
            return
        assert daemon.poll() is None
        assert time.monotonic() < until, kinds
        time.sleep(1.0)
