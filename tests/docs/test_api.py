"""docs/api.md says what the docstrings say now."""

import importlib.util
from pathlib import Path

import dovetail

ROOT = Path(__file__).parents[2]


def make_api():
    spec = importlib.util.spec_from_file_location("make_api", ROOT / "docs" / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    fresh, written = make_api().page(), (ROOT / "docs" / "api.md").read_text()
    assert written == fresh, "docs/api.md is stale. Run: .venv/bin/python docs/make_api.py"


def test_every_public_name_is_there_with_an_example():
    entries = (ROOT / "docs" / "api.md").read_text().split("\n### ")
    for name in dovetail.__all__:
        if name != "__version__":
            (entry,) = [entry for entry in entries if entry.startswith(f"`dt.{name}`\n")]
            assert ">>> " in entry, f"the docstring of dt.{name} must have an example that runs"


def test_it_does_not_depend_on_when_or_where_it_is_made():
    assert make_api().page() == make_api().page()
    for trace in (" at 0x", str(ROOT), "/home/", "/tmp/"):
        assert trace not in make_api().page()
