"""Another user of the machine, for tests that plant what another user would."""

import os

import pytest

OTHER = 12345

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")
