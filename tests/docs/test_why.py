"""The examples of docs/why.md run."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "why.md"


def test_the_examples_run():
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 4
    assert found.failed == 0
