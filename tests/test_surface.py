"""The public names: which there are, that each explains itself, and that every plug-in is listed."""

import ast
import collections
import importlib
import tomllib
import typing
from pathlib import Path

import pytest

import dovetail as dt

NAMES = [
    "CascadeClassifier",
    "CascadeRegressor",
    "Cluster",
    "DataShard",
    "DovetailError",
    "DriftDetector",
    "Halving",
    "Monitor",
    "Plan",
    "Population",
    "Result",
    "Scheduler",
    "Search",
    "Selection",
    "Session",
    "Settings",
    "ShardEvaluation",
    "Shards",
    "Stop",
    "Task",
    "Training",
    "TrainingError",
    "Workload",
    "__version__",
    "cascade",
    "choice",
    "connect",
    "detect",
    "drift",
    "explain",
    "feed",
    "from_lightning",
    "from_trainer",
    "grid",
    "incremental",
    "integers",
    "join",
    "log_uniform",
    "occlusion",
    "open_result",
    "plan",
    "race",
    "route",
    "run",
    "run_daemon",
    "sample",
    "search",
    "select",
    "task",
    "uniform",
    "when",
    "workload",
]
ROOT = Path(dt.__file__).parent


def test_the_public_names():
    assert dt.__all__ == NAMES
    assert dir(dt) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name):
    assert getattr(dt, name) is getattr(dt, name)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"__version__"}))
def test_every_name_explains_itself(name):
    text = getattr(dt, name).__doc__
    assert text
    assert not text.startswith(f"{name}(")  # what dataclasses write where nobody did
    assert ">>>" in text


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"__version__"}))
def test_every_annotation_can_be_resolved(name):
    assert isinstance(typing.get_type_hints(getattr(dt, name)), dict)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="module 'dovetail' has no attribute 'pln'"):
        dt.pln  # noqa: B018


def test_no_public_name_is_also_a_module():
    assert not {file.stem for file in ROOT.iterdir()} & set(NAMES)
    import dovetail.planning.problem as module

    assert module.__name__ == "dovetail.planning.problem"


def test_every_module_can_be_imported_by_its_name():
    """No package exports a function of a submodule's name: `import a.b as x` gives the module."""
    for init in sorted(ROOT.rglob("__init__.py")):
        package = ".".join(("dovetail", *init.parent.relative_to(ROOT).parts))
        for name in sorted(files_of(init.parent) - {"__main__"}):
            module = importlib.import_module(f"{package}.{name}")
            assert getattr(importlib.import_module(package), name) is module, module.__name__


def test_class_names_are_unique():
    places = collections.defaultdict(list)
    for file in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def files_of(folder):
    """The modules of a folder, be they files or folders."""
    packages = {file.parent.name for file in (ROOT / folder).glob("*/__init__.py")}
    return {file.stem for file in (ROOT / folder).glob("*.py")} - {"__init__"} | packages


# Files of these folders that are no variant of their plug-in.
TECHNIQUES_ASIDE = {"base", "build", "checkpoint", "export", "loop", "randomness", "state", "weights"}
TECHNIQUES_ASIDE |= {"buffers", "cutting", "microbatches", "nested", "ranked_session", "ranks", "recompute", "rows"}
TECHNIQUES_ASIDE |= {"flat_optimizer", "isolation", "replayability", "rowwise_session", "schedulers", "staged_batches"}
TECHNIQUES_ASIDE |= {
    "compressed_gradients",
    "data_waits",
    "fp8_kernels",
    "fp8_products",
    "meeting_store",
    "numeric",
    "undeclared",
}
TECHNIQUES_ASIDE |= {"compiled_programs", "postponed_compiler", "shard_evaluation", "triton_kernels"}


def test_every_technique_is_listed():
    from dovetail.planning import TECHNIQUES

    assert files_of("train") - TECHNIQUES_ASIDE == TECHNIQUES.keys()
    assert files_of("planning/techniques") - {"base"} == TECHNIQUES.keys()
    assert all(spec.name == name for name, spec in TECHNIQUES.items())


def test_every_planner_is_listed():
    from dovetail.planning import PLANNERS

    planners = {
        name
        for name in files_of("planning/schedule")
        if (planner := getattr(importlib.import_module(f"dovetail.planning.schedule.{name}"), "plan", None))
        and planner.__module__ == f"dovetail.planning.schedule.{name}"
    }
    assert planners == {planner.__module__.rpartition(".")[2] for planner in PLANNERS.values()}


def test_every_tracker_is_listed():
    from dovetail.trackers import TRACKERS, Tracker

    found = {name for name in files_of("trackers") if _defines(f"dovetail.trackers.{name}", Tracker)}
    assert found == TRACKERS.keys()
    extras = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for tracker in TRACKERS.values():
        (needed,) = [each for each in extras[tracker.extra] if each.startswith(tuple(tracker.distributions))]
        assert needed.endswith(f">={tracker.least_version}")


def _defines(module, base):
    """Whether a module has a class of its own below `base`."""
    values = vars(importlib.import_module(module)).values()
    return any(
        isinstance(each, type) and issubclass(each, base) and each.__module__ == module
        for each in values
        if each is not base
    )


def test_every_conformance_suite_runs_on_every_variant_shipped():
    suites = {"techniques": "TechniqueConformance", "engines": "EngineConformance", "stores": "StoreConformance"}
    suites["trackers"] = "TrackerConformance"
    tests = Path(__file__).parent
    for file, suite in suites.items():
        assert hasattr(importlib.import_module(f"dovetail.testing.{file}"), suite)
        assert any(f"({suite})" in path.read_text() for path in tests.rglob("test_*.py")), suite
