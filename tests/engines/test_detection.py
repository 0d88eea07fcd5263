import os

import pytest

from dovetail.engines import detect
from dovetail.engines.detection import accelerator, visible
from dovetail.vocabulary import Kind, dumps, loads


def test_without_accelerators_its_cores_are_the_devices(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cluster = detect()
    (kind,) = cluster.kinds
    assert kind.processor == "cpu"
    assert kind.name.startswith("cpu")
    assert [device.index for device in cluster.devices] == sorted(os.sched_getaffinity(0))
    assert cluster.nodes[0].cores == len(cluster.devices)
    assert cluster.nodes[0].memory_bytes > 0
    assert cluster.nodes[0].disk_bytes > 0
    assert loads(type(cluster), dumps(cluster)) == cluster


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("0, NVIDIA H200, 143771", "h200"),
        ("3, Tesla V100-SXM2-16GB, 16384", "tesla-v100-sxm2-16gb"),
        ("2, NVIDIA GeForce RTX 3090, 24576", "geforce-rtx-3090"),
        ("1, NVIDIA A100-SXM4-80GB, 81920", "a100-sxm4-80gb"),
    ],
)
def test_what_the_driver_prints(line, name):
    index, kind = accelerator(line)
    assert (index, kind.name, kind.processor) == (int(line[0]), name, "cuda")
    assert 0 < kind.memory_bytes < int(line.split(",")[2]) << 20


@pytest.mark.parametrize("line", ["0, NVIDIA GB10, [N/A]", "no devices were found"])
def test_what_says_too_little_is_left_out(line):
    assert accelerator(line) is None


@pytest.mark.parametrize(
    ("mask", "left"),
    [(None, [0, 1, 2]), ("", []), ("-1", []), ("1", [1]), ("2,0", [2, 0]), ("0,7,1", [0]), ("MIG-x", [])],
)
def test_only_visible_devices_are_used(mask, left):
    seen = [(number, Kind(name="h200", processor="cuda")) for number in range(3)]
    assert [number for number, _ in visible(seen, mask)] == left


def test_a_machine_is_found_from_a_folder_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert detect().nodes[0].disk_bytes > 0
