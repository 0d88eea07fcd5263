import importlib
import sys
from pathlib import Path

import torch

import tests
from dovetail.describe.installed import StandardLibraryFirst, is_installed, standard_paths

ASKS = "def ask(finder):\n    return finder.find_spec('queue', None)\n"


def install(folder: Path, name: str, *, files: str | None = None) -> Path:
    """A package as `pip install --target FOLDER` leaves it; or with another record of its files."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(ASKS)
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "RECORD").write_text(f"{name}/__init__.py,,\n" if files is None else files)
    return folder / name / "__init__.py"


def test_what_python_and_packages_bring_is_installed_wherever_it_lies(tmp_path):
    assert is_installed(importlib.__file__)
    assert is_installed(torch.__file__)
    assert is_installed("/usr/lib/python3/dist-packages/yaml/__init__.py"), "under a virtual environment"
    assert is_installed(str(Path.home() / ".local/lib/python3.11/site-packages/yaml/nodes.py")), "with --user"
    assert is_installed(str(install(tmp_path / "libraries", "hub"))), "on PYTHONPATH, or by a .pth file"


def test_the_users_own_is_not(tmp_path):
    assert not is_installed(tests.__file__)
    assert not is_installed(str(tmp_path / "sweep.py"))
    install(tmp_path, "hub")
    assert not is_installed(str(tmp_path / "sweep.py")), "beside what was installed into the same folder"
    editable = install(tmp_path / "editable", "mine", files="__editable__.mine.pth,,\n")
    assert not is_installed(str(editable)), "its files are not among those that were installed"


def test_installed_packages_are_given_the_standard_librarys_modules_and_programs_what_python_gives(
    tmp_path, monkeypatch
):
    install(tmp_path / "libraries", "hub_that_asks")
    (tmp_path / "program_that_asks.py").write_text(ASKS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "libraries"), *sys.path])
    found = importlib.import_module("hub_that_asks").ask(StandardLibraryFirst())
    assert any(found.origin.startswith(path) for path in standard_paths())
    assert importlib.import_module("program_that_asks").ask(StandardLibraryFirst()) is None
