"""The page's modules become one script, every one of them, each after what it imports."""

import re
from pathlib import Path

from dovetail.web import frozen_page

PAGE = Path(frozen_page.__file__).parent / "page"


def test_every_module_is_in_it_after_what_it_imports():
    order = re.findall(r'^modules\["([\w.]+)"\] =', frozen_page.bundle(), flags=re.MULTILINE)
    assert sorted(order) == sorted(path.name for path in PAGE.glob("*.js"))
    for path in PAGE.glob("*.js"):
        for other in re.findall(r'from "\./([\w.]+)"', path.read_text()):
            assert order.index(other) < order.index(path.name), f"{path.name} imports {other}: a circle"


def test_nothing_of_a_module_is_left_that_a_script_cannot_have():
    text = frozen_page.bundle()
    assert not re.findall(r"^\s*(?:import|export)\b", text, flags=re.MULTILINE)
    assert "</script" not in text


def test_what_is_imported_is_exported():
    exported = {
        path.name: set(re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", path.read_text(), re.MULTILINE))
        for path in PAGE.glob("*.js")
    }
    for path in PAGE.glob("*.js"):
        for names, other in re.findall(r'^import \{ ([^}]*) \} from "\./([\w.]+)";', path.read_text(), re.MULTILINE):
            missing = {name.strip() for name in names.split(",")} - exported[other]
            assert not missing, f"{path.name} imports {missing} of {other}"


def test_no_module_sets_markup():
    for path in PAGE.glob("*.js"):
        assert not re.findall(
            r"\.(?:innerHTML|outerHTML)\s*=|insertAdjacentHTML|document\.write|\beval\(", path.read_text()
        )
