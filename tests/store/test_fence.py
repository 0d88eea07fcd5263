import pytest

from dovetail.store import check_fence, raise_fence
from dovetail.vocabulary import CheckpointError


def test_older_attempts_are_kept_out(tmp_path):
    raise_fence(tmp_path / "task", 3)
    check_fence(tmp_path / "task", 3)
    check_fence(tmp_path / "task", 4)
    with pytest.raises(CheckpointError, match=r"newest attempt, 3; this is attempt 2, which was given up"):
        check_fence(tmp_path / "task", 2)


def test_the_fence_can_be_raised_again_and_leaves_nothing_else(tmp_path):
    raise_fence(tmp_path, 1)
    raise_fence(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["attempt"]
