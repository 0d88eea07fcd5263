"""A missing extra is named with its install command."""

import ast
from pathlib import Path

import pytest

import dovetail.adapters.extras as extras
from dovetail.vocabulary import DovetailError


def test_a_missing_package_is_named_with_how_to_install_it():
    with pytest.raises(DovetailError, match=r"not installed. Install it: pip install 'dovetail\[lightning\]'"):
        extras.require("no_such_package", extra="lightning", least="2.4")


def test_what_a_package_itself_lacks_is_not_blamed_on_it(tmp_path, monkeypatch):
    (tmp_path / "half_there.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        extras.require("half_there", extra="lightning", least="2.4")


def test_versions_are_compared_by_their_numbers():
    assert extras.require("torch", extra="lightning", least="2.2.0").__name__ == "torch"


def test_no_framework_is_imported_before_it_is_asked_for():
    for file in Path(extras.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"lightning", "pytorch_lightning", "transformers"}
