"""Ray's own autoscaler as a provisioner: it starts and stops real nodes on this machine."""

import importlib.util
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
from dovetail.vocabulary.markets import Market
from tests.engines.test_ray import environment

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'dovetail[ray]'"),
]
SPOT = Market(kind="fast", zone="a")
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
    spot = {"resources": {"CPU": 1, **resources_of(SPOT)}, "node_config": {}, "min_workers": 0, "max_workers": 2}
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        **EMPTY,
        "cluster_name": "here",
        "max_workers": 2,
        "provider": provider,
        "head_node_type": "head",
        "upscaling_speed": 10.0,
        "idle_timeout_minutes": 0.05,
        "available_node_types": {"spot": spot, "head": head},
    }


@pytest.fixture
def provisioner(tmp_path):
    import ray._private.services as services

    token = tmp_path / "token"
    token.write_text("0123456789abcdef" * 4)
    token.chmod(0o600)
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    address = f"{services.get_node_ip_address()}:{port}"
    (tmp_path / "config.json").write_text(json.dumps(config(address)))
    wanted = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    hurried = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    command = [Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--num-cpus=0", f"--port={port}"]
    options = ["--include-dashboard=false", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    config_option = f"--autoscaling-config={tmp_path / 'config.json'}"
    with environment(**wanted):
        head = subprocess.Popen([*command, *options, config_option], env=os.environ | hurried)
        try:
            time.sleep(5)
            with connected(address, programs=[], home=tmp_path):
                yield AutoscalerProvisioner()
        finally:
            head.terminate()
            head.wait(60)


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


def test_nodes_are_asked_for_and_taken_away(provisioner):
    assert provisioner.nodes() == []
    provisioner.start("one", SPOT)
    (node,) = wait_for(provisioner, 1)
    assert (node.name, node.market) == ("one", SPOT)
    assert node.number in {each["NodeID"] for each in installed().nodes() if each["Alive"]}
    provisioner.stop("one")
    assert wait_for(provisioner, 0) == []
    provisioner.stop("one")
