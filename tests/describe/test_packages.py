"""Programs and workloads inside packages: by module name, with relative imports, from anywhere in their project."""

import dataclasses
import json
import sys

import pytest

from dovetail.describe import check_source, load, load_workload, program
from dovetail.describe.installed import editable_folders, project_folders
from dovetail.describe.programs import load_file
from dovetail.vocabulary import InvalidWorkload, ProgramError
from tests.cli.processes import dovetail, rows

SWEEP = """
import dovetail as dt
from .parts.model import build

workload = dt.grid(build, width=[1, 2], steps=3)


def other():
    return dt.grid(build, width=[3], steps=3)
"""
MODEL = """
import torch
import dovetail as dt
from ..settings import SCALE


def build(width=1):
    model = torch.nn.Linear(1, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [SCALE * torch.ones(2, 1)]
    return dt.Training(model=model, batches=batches, loss=lambda m, b: m(b).square().mean(), optimizer=optimizer)
"""
SETTINGS = """
SCALE = 1.0


def scale():
    return SCALE
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a package under `src`, whose modules nobody has imported; what the test imports is forgotten."""
    name = f"package_{tmp_path.name.replace('-', '_')}"
    files = {
        "pyproject.toml": "",
        f"src/{name}/__init__.py": "",
        f"src/{name}/sweep.py": SWEEP,
        f"src/{name}/settings.py": SETTINGS,
        f"src/{name}/parts/__init__.py": "",
        f"src/{name}/parts/model.py": MODEL,
        "experiments/plain.py": f"import dovetail as dt\nfrom {name}.parts.model import build\n"
        "workload = dt.grid(build, width=[5], steps=1)\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "experiments" / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "experiments" / "deep")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path, name
    for module in [each for each in sys.modules if each.startswith(name)]:
        del sys.modules[module]


def test_a_workload_by_the_name_of_its_module_from_anywhere_in_its_project(project):
    _, name = project
    found = load_workload(f"{name}.sweep")
    assert [task.name for task in found.tasks] == ["build width=1", "build width=2"]
    assert found.name == "sweep"
    assert load_workload(f"{name}.sweep:other").name == "sweep:other"


def test_a_file_with_relative_imports_is_a_module_of_its_package(project):
    folder, name = project
    found = load_workload(str(folder / "src" / name / "sweep.py"))
    assert [task.name for task in found.tasks] == ["build width=1", "build width=2"]
    assert load_workload(f"{name}.sweep").tasks == found.tasks
    assert load_file(folder / "src" / name / "sweep.py").__name__ == f"{name}.sweep"


def test_an_edited_file_of_a_package_is_read_anew(project):
    folder, name = project
    sweep = folder / "src" / name / "sweep.py"
    assert len(load_workload(str(sweep)).tasks) == 2
    sweep.write_text(SWEEP.replace("[1, 2]", "[1, 2, 3, 4]"))
    assert len(load_workload(str(sweep)).tasks) == 4


def test_a_file_beside_the_package_imports_from_the_project(project):
    folder, _ = project
    (only,) = load_workload(str(folder / "experiments" / "plain.py")).tasks
    assert only.name == "build width=5"


def test_a_program_is_loaded_from_its_root_wherever_that_is_done(project, monkeypatch):
    folder, name = project
    found = program(f"{name}.settings:scale")
    assert found.root == str(folder / "src")
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not each.startswith(str(folder))])
    assert name not in sys.modules  # it was found without importing anything
    with pytest.raises(ProgramError, match="must be importable"):
        load(dataclasses.replace(found, root=""))
    assert load(found)() == 1.0
    (folder / "src" / name / "settings.py").write_text(SETTINGS.replace("1.0", "2.0"))
    with pytest.raises(ProgramError, match="it was edited since"):
        check_source(found)


def test_packages_of_one_name_in_two_projects_are_two(project, monkeypatch):
    folder, name = project
    one = program(f"{name}.settings:scale")
    other = folder / "other" / name
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("")
    (other / "settings.py").write_text(SETTINGS.replace("1.0", "2.0"))
    two = program(dataclasses.replace(one, root=str(other.parent)))
    monkeypatch.chdir("/")
    assert [load(each)() for each in (one, two, one)] == [1.0, 2.0, 1.0]
    assert len({one.source, two.source}) == 2
    check_source(one)
    check_source(two)


@pytest.mark.parametrize("edited", ["settings.py", "parts/model.py"])
def test_what_a_program_reaches_in_its_project_is_part_of_it(project, edited):
    folder, name = project
    plain = folder / "experiments" / "wrapping.py"
    plain.write_text(f"from {name}.parts.model import build\ndef wrapped():\n    return build()\n")
    before = program(f"{plain}:wrapped").source, program(f"{name}.parts.model:build").source
    file = folder / "src" / name / edited
    file.write_text(file.read_text().replace("1.0", "2.5").replace("lr=0.1", "lr=0.25"))
    after = program(f"{plain}:wrapped").source, program(f"{name}.parts.model:build").source
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_editable_installs_are_known_by_their_source(tmp_path, monkeypatch):
    note = tmp_path / "site-packages" / "mine-1.0.dist-info" / "direct_url.json"
    note.parent.mkdir(parents=True)
    note.write_text(json.dumps({"url": f"file://{tmp_path}/a%20project", "dir_info": {"editable": True}}))
    package = tmp_path / "a project" / "src" / "mine_editable.py"
    package.parent.mkdir(parents=True)
    package.write_text("def build():\n    return 1\n")
    user = tmp_path / "elsewhere" / "sweep.py"
    user.parent.mkdir()
    user.write_text("from mine_editable import build\ndef wrapped():\n    return build()\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(note.parents[1])])
    editable_folders.cache_clear()
    try:
        before = program(f"{user}:wrapped").source
        package.write_text("def build():\n    return 22\n")
        assert program(f"{user}:wrapped").source != before
    finally:
        editable_folders.cache_clear()


def test_what_cannot_be_found_is_refused(project, tmp_path):
    with pytest.raises(ProgramError, match=r"no_such_package\.sweep must be importable"):
        load_workload("no_such_package.sweep")
    with pytest.raises(InvalidWorkload, match="must define a workload named 'nothing'"):
        load_workload(f"{project[1]}.sweep:nothing")
    assert project_folders(tmp_path / "src") == (tmp_path / "src", tmp_path)


@pytest.mark.process
def test_a_package_is_trained_by_its_name_and_by_its_file(project):
    folder, name = project
    where = folder / "experiments"
    found = dovetail("run", f"{name}.sweep", cwd=where)
    assert found.code == 0, found.err
    found = dovetail("run", folder / "src" / name / "sweep.py", cwd=where)
    assert found.code == 0, found.err
    found = dovetail("run", "plain.py", cwd=where)
    assert found.code == 0, found.err
    assert {row["status"] for row in rows(where).values()} == {"finished"}
