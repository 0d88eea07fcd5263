import os

import pytest

from dovetail.engines import detect
from dovetail.engines.detect import _accelerator
from dovetail.vocabulary import dumps, loads


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
        ("3, Tesla V100-SXM2-16GB, 16384", "tesla"),
        ("1, NVIDIA A100-SXM4-80GB, 81920", "a100-sxm4-80gb"),
    ],
)
def test_what_the_driver_prints(line, name):
    index, kind = _accelerator(line)
    assert (index, kind.name, kind.processor) == (int(line[0]), name, "cuda")
    assert 0 < kind.memory_bytes < int(line.split(",")[2]) << 20
