"""What a controller on this machine leaves behind when it ends."""

from dovetail.control import Settings
from dovetail.describe import grid
from dovetail.engines import detect
from dovetail.store import make_scratch
from dovetail.verbs.controller import open_controller


def test_what_killed_workers_left_in_scratch_is_gone_when_the_controller_ends(tmp_path):
    workload = grid("dovetail.testing.programs:dropout", seed=[0], steps=1)
    before = make_scratch(tmp_path, prefix="meeting-")
    with open_controller(workload, cluster=detect(), home=tmp_path, settings=Settings()):
        assert not before.exists()
        left = make_scratch(tmp_path, prefix="tmp")
        (left / "half.safetensors").write_bytes(b"half")
        coming = make_scratch(tmp_path, prefix="control-")  # of one that waits for the lock
    assert not left.exists()
    assert coming.exists()
