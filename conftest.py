"""What is left out where packages that `pip install '.[tools]'` brings are not installed: with them Ray starts all of
its dashboard on every node, for which the machines of CI have no time. And what need not be read."""

import importlib.util
from pathlib import Path

import pytest

collect_ignore: list[str] = []
if importlib.util.find_spec("lightning") is None:
    collect_ignore += ["dovetail/adapters/lightning.py", "tests/adapters/test_lightning.py"]
    collect_ignore += ["tests/adapters/test_in_a_sweep.py", "tests/docs/test_adapters.py"]
if importlib.util.find_spec("datasets") is None:
    collect_ignore += ["tests/adapters/test_hf_trainer.py"]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of a run of tests that start processes, files that have none: to import those took each of its workers 12 s."""
    is_asked = config.option.markexpr.startswith("process") and collection_path.suffix == ".py"
    return True if is_asked and not _may_start_processes(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No test that starts processes is where such a run does not look for it."""
    for path in {item.path for item in items if item.get_closest_marker("process")}:
        assert _may_start_processes(path), f"{path} must mention mark.process, or conftest.py leaves it out"


def _may_start_processes(path: Path) -> bool:
    text = path.read_text()
    return "mark.process" in text or "from dovetail.testing" in text  # whose suites carry the mark
