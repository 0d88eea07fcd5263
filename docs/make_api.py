"""Writes docs/api.md from the docstrings: `.venv/bin/python docs/make_api.py`.

Signatures are read from the source, not from the running objects, so that the page is the same under every
version of Python and holds no addresses.
"""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dovetail

PAGE = Path(__file__).with_name("api.md")
WIDTH = 110

# The examples stand as their docstrings have them, whatever a formatter of Markdown would rather see.
HEAD = """<!-- fmt: off -->
# API

Written by `docs/make_api.py` from the docstrings; do not edit. `import dovetail as dt` loads no torch until a name
needs it. Every example runs in the tests. The [tutorial](tutorial.md) shows how these fit together.
"""

PUBLIC = {
    "Describe": [
        "grid",
        "sample",
        "Search",
        "uniform",
        "log_uniform",
        "integers",
        "choice",
        "when",
        "task",
        "workload",
        "join",
        "Training",
        "Scheduler",
        "from_lightning",
        "from_trainer",
    ],
    "Feed": ["feed", "Shards", "DataShard", "ShardEvaluation", "feeds:Feed", "feeds:RunningFeed"],
    "Frames": [
        "frame:fuse",
        "frame:FusedFunction",
        "frame:table",
        "frame:LazyTable",
        "frame:LazyColumn",
        "frame:GroupedTable",
        "frame:offload",
        "frame:OffloadedFunction",
    ],
    "Select": ["select", "Selection"],
    "Plan and run": [
        "plan",
        "run",
        "search",
        "Session",
        "run_daemon",
        "connect",
        "verbs.client:Client",
        "detect",
        "Settings",
    ],
    "Race": [
        "race",
        "metrics.race.outcome:RaceResult",
        "metrics.race.contestants:Contestant",
        "metrics.race.contestants:RaceRun",
        "metrics.race.speed_up:SpeedUp",
    ],
    "Ask a model": [
        "cascade",
        "serve.cascades:ModelCascade",
        "CascadeClassifier",
        "CascadeRegressor",
        "route",
        "serve.routing:Router",
        "serve.routing:OutcomeTable",
        "serve.routing:RoutingReport",
        "occlusion",
        "incremental",
        "serve.incremental:OcclusionMap",
        "serve.incremental:IncrementalModel",
    ],
    "Why": ["explain"],
    "Watch": [
        "drift",
        "watch.drift:Drift",
        "DriftDetector",
        "Monitor",
    ],
    "Results": ["open_result", "Result", "control:TaskResult"],
    "Records": [
        "Workload",
        "Task",
        "Stop",
        "Halving",
        "Population",
        "Cluster",
        "Plan",
        "DovetailError",
        "TrainingError",
    ],
}
# Beyond what dovetail/__init__.py lists: what those who extend it implement, receive, and are held to.
EXTENSION = {
    "Techniques": [
        "planning:TechniqueSpec",
        "planning.techniques:Evidence",
        "planning:Trial",
        "train:Technique",
        "train:TrainingSession",
        "train:SessionMember",
        "train:StepReport",
        "train:TrainingState",
    ],
    "Planners": ["planning:Problem", "planning:check", "planning:lower_bound"],
    "Engines": ["engines:Engine", "engines:Order", "engines:MemberOrder"],
    "Trackers": ["trackers:Tracker", "trackers:RunFacts", "trackers:OpenedRun"],
    "Conformance suites": [
        "testing.techniques:TechniqueConformance",
        "testing.engines:EngineConformance",
        "testing.stores:StoreConformance",
    ],
}
SECTIONS = {
    "Techniques": "What runs is a `Technique`; what planners, engines and the controller know of it is its "
    "`TechniqueSpec`, listed in `dovetail.planning.TECHNIQUES`.",
    "Planners": "A planner is a pure function from a `Problem` to a `Plan`, listed in `dovetail.planning.PLANNERS`.",
    "Engines": "Passed to `dovetail.control.Controller`.",
    "Trackers": "Listed in `dovetail.trackers.TRACKERS`; `dovetail run --track` names them.",
    "Conformance suites": "Subclass one in a test file, give it what it asks for, and run pytest.",
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """The whole page."""
    listed = {name for names in PUBLIC.values() for name in names}
    missing = set(dovetail.__all__) - listed - {"__version__"}
    assert not missing, f"docs/make_api.py must give every public name a section; {sorted(missing)} have none"
    parts = [HEAD]
    for section, names in {**PUBLIC, **EXTENSION}.items():
        parts.append(f"## {section}\n")
        parts += [f"{SECTIONS[section]}\n"] if section in SECTIONS else []
        parts += [_entry(name) for name in names]
    return "\n".join(parts)


def _entry(name: str) -> str:
    module, _, plain = name.rpartition(":")
    owner = importlib.import_module(f"dovetail.{module}") if module else dovetail
    found = getattr(owner, plain)
    shown = f"dovetail.{module}.{plain}" if module else f"dt.{plain}"
    parts = [f"### `{shown}`\n"]
    # A suite that explains itself at the top of its file is explained by that.
    opening = inspect.getdoc(owner) if module.startswith("testing.") else None
    parts += [_prose(opening)] if opening else []
    node = _parsed(found)
    parts += [_code("python", signature)] if (signature := _signature(node, shown)) else []
    parts.append(_prose(inspect.getdoc(found) or ""))
    parts += [f"{listed}\n"] if isinstance(node, ast.ClassDef) and (listed := "\n".join(_methods(node))) else []
    return "\n".join(parts)


def _parsed(found: Any) -> ast.ClassDef | ast.FunctionDef:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    assert isinstance(node, ast.ClassDef | ast.FunctionDef)
    return node


def _signature(node: ast.ClassDef | ast.FunctionDef, name: str) -> str:
    if isinstance(node, ast.FunctionDef):
        return _call(name, _arguments(node), node.returns)
    if not _is_record(node):
        return ""
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and not _is_made(part)]
    written = ["*" if "KW_ONLY" in ast.unparse(field.annotation) else ast.unparse(field) for field in fields]
    return _call(name, written if "*" in written else ["*", *written], None)


def _is_made(field: ast.AnnAssign) -> bool:
    return field.value is not None and "init=False" in ast.unparse(field.value)


def _arguments(node: ast.FunctionDef) -> list[str]:
    """Each argument as it is written, without `self`."""
    found, names = node.args, node.args.posonlyargs + node.args.args
    defaults = [None] * (len(names) - len(found.defaults)) + list(found.defaults)
    written = [_argument(each, default) for each, default in zip(names, defaults, strict=True) if each.arg != "self"]
    if found.vararg or found.kwonlyargs:
        written.append(f"*{_argument(found.vararg, None)}" if found.vararg else "*")
    written += [_argument(each, default) for each, default in zip(found.kwonlyargs, found.kw_defaults, strict=True)]
    return written + ([f"**{_argument(found.kwarg, None)}"] if found.kwarg else [])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    spaced = " = " if kind else "="
    return argument.arg + kind + (f"{spaced}{ast.unparse(default)}" if default is not None else "")


def _call(name: str, arguments: list[str], returns: ast.expr | None) -> str:
    line = f"{name}({', '.join(arguments)}){_arrow(returns)}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + f"){_arrow(returns)}"


def _arrow(returns: ast.expr | None) -> str:
    return f" -> {ast.unparse(returns)}" if returns else ""


def _is_record(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _methods(node: ast.ClassDef) -> Iterator[str]:
    """A line for each public method and property; the laws of a suite are named by their tests."""
    laws = []
    if not _is_record(node):
        yield from (f"- `{ast.unparse(part)}`" for part in node.body if isinstance(part, ast.AnnAssign))
    for method in [part for part in node.body if isinstance(part, ast.FunctionDef)]:
        if method.name.startswith("test_"):
            laws.append(method.name.removeprefix("test_").replace("_", " "))
        elif not method.name.startswith("_") or method.name == "__call__":
            is_property = any(ast.unparse(decorator).endswith("property") for decorator in method.decorator_list)
            arguments = "" if is_property else f"({', '.join(_arguments(method))}){_arrow(method.returns)}"
            said = re.split(r"\n\s*>>> ", ast.get_docstring(method) or "")[0]
            yield f"- `{method.name}{arguments}`: {' '.join(said.split())}"
    if laws:
        yield "- Its laws: " + "; ".join(laws) + "."


def _prose(text: str) -> str:
    """A docstring as Markdown: the examples become blocks."""
    parts, example = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith(">>> ") or (example and line):
            example.append(line)
            continue
        if example:
            parts.append(_code("pycon", "\n".join(example)))
            example = []
        parts.append(line)
    return "\n".join(parts).strip() + "\n"


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


if __name__ == "__main__":
    main()
