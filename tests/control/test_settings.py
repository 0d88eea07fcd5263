"""What a user may set is checked when it is set."""

import pytest

from dovetail.control import Settings
from dovetail.vocabulary import InvalidWorkload


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"save_every_seconds": 0.0}, "saving must happen after a positive time .* got 0.0 s and None steps"),
        ({"save_every_steps": 0}, "saving must happen after .* got 30.0 s and 0 steps"),
        ({"keep_count": 0}, "keep at least 1 checkpoint"),
        ({"retries": -1}, "0 retries, got 2 and -1"),
        ({"trial_seconds": float("nan")}, "trials must have 0 s or more, got nan s"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(InvalidWorkload, match=message):
        Settings(**fields)
