"""docs/policies.md names every policy, with its formula, as the docstrings have it now."""

import importlib.util
import re
from pathlib import Path

import pytest

from dovetail.planning.share.policies import POLICIES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "policies.md"


def make_policies():
    spec = importlib.util.spec_from_file_location("make_policies", ROOT / "docs" / "make_policies.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    stale = "docs/policies.md is stale. Run: .venv/bin/python docs/make_policies.py"
    assert PAGE.read_text() == make_policies().page(), stale


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_is_there_with_its_formula(name):
    (entry,) = [part for part in PAGE.read_text().split("\n## ") if part.startswith(f"`{name}`\n")]
    (formula,) = re.findall(r"^> (.+)$", entry, flags=re.MULTILINE)
    # An optimum, shares given outright, or another policy with one thing more.
    assert re.search(r"\b(max|min|maximum|share\(|Water filling of|As `spend`)", formula), formula
