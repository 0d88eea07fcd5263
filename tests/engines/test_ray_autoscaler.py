"""Ray's own autoscaler as a provisioner: it starts and stops real nodes on this machine."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dovetail.engines.ray.autoscaler import AutoscalerProvisioner, resources_of
from dovetail.engines.ray.connection import OBJECT_STORE_BYTES, connected, installed
from dovetail.testing.provisioners import SPOT, SURE, ProvisionerConformance
from tests.engines.ray_clusters import needs_ray, with_token

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    needs_ray,
]
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
        "head_node_type": "head",
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.05,
        "available_node_types": {**types, "head": head},
    }


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    """The address of a Ray cluster that begins with a head alone, and asks for a token."""
    import ray._private.services as services

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
            time.sleep(5)
            yield address
        finally:
            process.terminate()
            process.wait(60)


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
    until = time.monotonic() + 90.0
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
