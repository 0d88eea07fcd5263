import random
import sys

import numpy
import pytest
import torch

from dovetail.describe import module_variables
from dovetail.describe.module_variables import ModuleVariables

SOURCE = """
import collections, functools, random
import numpy, torch

COUNT, NAME, LAZY = 0, "a", None
CONFIG = {"rate": 0.1, "sizes": [1, 2]}
SEEN, QUEUE, NAMES, TALLY = [], collections.deque(maxlen=3), {"x"}, collections.Counter(a=1)
DRAW, ARRAYS, TENSORS = random.Random(3), numpy.random.default_rng(3), torch.Generator().manual_seed(3)

class Options:
    depth = 2
    def __init__(self): self.width = 4

OPTIONS = Options()

def remember(value, kept=[]):
    kept.append(value)
    return kept

@functools.cache
def data(): return object()
"""

CHANGES = {
    "COUNT": lambda m: setattr(m, "COUNT", 1),
    "NAME": lambda m: setattr(m, "NAME", "b"),
    "LAZY": lambda m: setattr(m, "LAZY", object()),
    "CONFIG": lambda m: m.CONFIG.update(rate=0.2, more=1),
    "CONFIG inside": lambda m: m.CONFIG["sizes"].append(3),
    "SEEN": lambda m: m.SEEN.append(1),
    "QUEUE": lambda m: m.QUEUE.extend([1, 2]),
    "NAMES": lambda m: m.NAMES.add("y"),
    "TALLY": lambda m: m.TALLY.update(a=5, b=1),
    "DRAW": lambda m: m.DRAW.random(),
    "ARRAYS": lambda m: m.ARRAYS.random(),
    "TENSORS": lambda m: torch.rand(2, generator=m.TENSORS),
    "Options": lambda m: setattr(m.Options, "depth", 3),
    "OPTIONS": lambda m: setattr(m.OPTIONS, "width", 8),
    "remember": lambda m: m.remember(1),
    "ADDED": lambda m: setattr(m, "ADDED", 1),
}


def seen(module):
    """All that a task could find in the module."""
    draws = module.DRAW.getstate(), repr(module.ARRAYS.bit_generator.state), module.TENSORS.get_state().tolist()
    names = {name for name in vars(module) if not name.startswith("__")}
    held = repr([module.CONFIG, module.SEEN, module.QUEUE, module.NAMES, module.TALLY, module.remember.__defaults__])
    return names, held, draws, module.COUNT, module.NAME, module.LAZY, module.Options.depth, vars(module.OPTIONS).copy()


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "leaky_module.py").write_text(SOURCE)
    (tmp_path / "leaky_later.py").write_text("VALUE = [0]")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in ("leaky_module", "leaky_later"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_task_did_is_undone_before_the_next_program_is_loaded(module, name):
    modules = ModuleVariables()
    with modules.loading():
        import leaky_module
    before, kept = seen(leaky_module), leaky_module.data()
    containers = [leaky_module.CONFIG, leaky_module.SEEN]
    CHANGES[name](leaky_module)
    assert seen(leaky_module) != before
    with modules.loading():
        pass
    assert seen(leaky_module) == before
    assert leaky_module.data() is kept
    assert containers[0] is leaky_module.CONFIG  # whoever imported it by name sees the same one
    assert containers[1] is leaky_module.SEEN


def test_changes_are_named_and_nothing_is_where_nothing_changed(module):
    modules = ModuleVariables()
    with modules.loading():
        import leaky_module
    assert modules.put_back() == []
    leaky_module.CONFIG["sizes"].append(3)
    leaky_module.COUNT += 1
    leaky_module.NAME = "".join(["", "a"])  # another object, and the same
    assert sorted(modules.put_back()) == ["leaky_module.CONFIG", "leaky_module.COUNT"]


def test_a_module_that_is_imported_by_a_task_is_known_as_its_import_left_it(module):
    modules = ModuleVariables()
    with modules.loading():
        pass
    import leaky_later

    leaky_later.VALUE[0] = 5
    with modules.loading():
        pass
    assert leaky_later.VALUE == [0]
    assert leaky_later is sys.modules["leaky_later"]
    assert leaky_later.__spec__.loader.get_source("leaky_later") == "VALUE = [0]"


def test_installed_packages_are_left_alone(module):
    modules = ModuleVariables()
    with modules.loading():
        pass
    state = random.getstate()
    random.random()
    numpy.random.rand()
    assert modules.put_back() == []
    assert random.getstate() != state


PACKAGE = {
    "leaky_package/__init__.py": "",
    "leaky_package/config.py": "WIDTH, KINDS, ORDER, TAGS = 64, {'a': [1]}, [1], {'x'}\nclass Base: kinds = {}\n",
    "leaky_package/model.py": """
from leaky_package import config
config.WIDTH, config.DEPTH, config.KINDS["b"], config.Base.depth = 128, [3], [2], 5
config.Base.kinds["mine"] = 1
config.ORDER.append(2)
config.TAGS.add("y")
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in [each for each in sys.modules if each.startswith("leaky_package")]:
        del sys.modules[name]


def left(config):
    """What the imports of both modules make of the first."""
    held = config.WIDTH, config.DEPTH, config.KINDS, config.ORDER, config.TAGS, config.Base.depth, config.Base.kinds
    return held == (128, [3], {"a": [1], "b": [2]}, [1, 2], {"x", "y"}, 5, {"mine": 1})


def test_what_one_module_makes_of_another_is_part_of_importing_both(package):
    modules = ModuleVariables()
    with modules.loading():
        import leaky_package.model
    config = leaky_package.config
    assert left(config)
    assert modules.put_back() == []
    assert left(config)
    config.KINDS["b"].append(3)
    assert modules.put_back() == ["leaky_package.config.KINDS"]
    assert left(config)


def test_what_an_import_in_the_midst_of_a_task_makes_of_a_module_stays_and_what_the_task_does_is_undone(package):
    modules = ModuleVariables()
    with modules.loading():
        from leaky_package import config
    config.KINDS["task"], config.MORE = [4], 1
    config.ORDER.insert(0, 0)
    config.TAGS.add("task")
    config.KINDS["a"].append(9)
    import leaky_package.model

    config.DEPTH.append(4)
    changed = modules.put_back()
    assert "leaky_package.config.WIDTH" not in changed
    assert left(config)
    assert not hasattr(config, "MORE")
    assert leaky_package.model is sys.modules["leaky_package.model"]
    assert modules.put_back() == []


def test_a_module_that_a_task_imported_stays_where_it_is(package):
    modules = ModuleVariables()
    with modules.loading():
        import leaky_package
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, module_variables._Watching)]
    import leaky_package.config

    assert modules.put_back() == []
    assert leaky_package.config is sys.modules["leaky_package.config"]


def test_a_variable_with_very_much_in_it_is_left_alone(module, monkeypatch):
    monkeypatch.setattr(module_variables, "_MOST_OF_VARIABLE", 3)
    modules = ModuleVariables()
    with modules.loading():
        import leaky_module
    leaky_module.CONFIG["sizes"].append(3)
    leaky_module.SEEN.append(3)
    assert modules.put_back() == ["leaky_module.SEEN"]
    assert leaky_module.CONFIG["sizes"] == [1, 2, 3]
