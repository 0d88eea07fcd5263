import functools
import os
import shutil
import subprocess
import sys

import pytest

from dovetail.describe import check_parameters, deposit, load, load_workload, program
from dovetail.describe.carried import key_path
from dovetail.store import write_atomically
from dovetail.vocabulary import InvalidWorkload, Program, ProgramError


def top_level(width=1):
    return width


def other(width=1):
    return -width


def make(value):
    def closed():
        return value

    return closed


class Callable:
    def __init__(self, width):
        self.width = width

    def __call__(self):
        return self.width


@pytest.fixture
def home(tmp_path):
    return tmp_path / "store"


def carried(function, home):
    found = program(function)
    deposit(home, write=write_atomically)
    return load(found, home=home)


# Names


def test_a_function_of_a_module_is_named():
    found = program(top_level)
    assert found.reference == "tests.describe.test_programs:top_level"
    assert load(found) is top_level
    assert found == program("tests.describe.test_programs:top_level")


def test_a_function_of_a_file_is_named_by_its_whole_path(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def f():\n    return 4\n")
    monkeypatch.chdir(tmp_path)
    found = program("mine.py:f")
    assert found.reference == f"{tmp_path.resolve()}/mine.py:f"
    assert load(found)() == 4


def test_a_script_names_its_own_functions_by_its_file(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from dovetail.describe import program\n"
        "def f(): pass\n"
        "if __name__ == '__main__':\n"
        "    print(program(f).reference, program(f) == program(__file__ + ':f'))\n"
    )
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [f"{script.resolve()}:f", "True"]


def test_a_file_that_was_edited_is_run_anew(tmp_path):
    path = tmp_path / "mine.py"
    for clock, answer in ((1, 1), (2, 2)):
        path.write_text(f"def f(): return {answer}\n")
        os.utime(path, ns=(0, clock * 10**9))
        assert load(Program(reference=f"{path}:f"))() == answer


def test_programs_of_two_folders_have_neighbours_of_their_own(tmp_path):
    # One worker runs both, one after the other, and again.
    for name in ("one", "two"):
        folder = tmp_path / name
        (folder / "parts").mkdir(parents=True)
        (folder / "neighbour.py").write_text(f"WHO = {name!r}\n")
        (folder / "parts" / "__init__.py").write_text("")
        (folder / "parts" / "inner.py").write_text(f"WHO = {name!r}\n")
        (folder / "sweep.py").write_text(
            "from neighbour import WHO\nfrom parts.inner import WHO as INNER\n"
            "def f():\n    import neighbour\n    from parts import inner\n"
            "    return WHO, INNER, neighbour.WHO, inner.WHO\n"
        )
    for name in ("one", "two", "one", "two"):
        assert load(program(str(tmp_path / name / "sweep.py") + ":f"))() == (name,) * 4


FORGETTING = """
import sys
sys.path.insert(0, sys.argv[1])
import json.decoder, torch
import space.inner, space.deep.inner, whole.inner
from dovetail.describe.programs import forget_modules
json.mine = sys.modules["json.mine"] = inner = whole.inner  # as in a namespace of which a part is installed
kept = json.decoder, torch.ops, torch.classes
space_file = sys.argv[1] + "/space/inner.py"
open(space_file, "w").write("WHO = 'edited'")
forget_modules()
assert (sys.modules["json.decoder"], sys.modules["torch.ops"], sys.modules["torch.classes"]) == kept
assert torch.ops is kept[1] and json.decoder is kept[0] and not hasattr(json, "mine")
assert not [name for name in sys.modules if name.partition(".")[0] in ("space", "whole")]
from space import inner
print(inner.WHO)
"""


def test_packages_without_a_file_are_forgotten_too(tmp_path):
    for name in ("space/inner.py", "space/deep/inner.py", "whole/__init__.py", "whole/inner.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("WHO = 'first'")
    found = subprocess.run([sys.executable, "-Bc", FORGETTING, tmp_path], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("edited\n", "")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:f", r"a program's file must exist; .*nowhere.py does not"),
        ("no.such.module:f", "a program's module must be importable; 'no.such.module' was not found on the path"),
        ("torch._C:f", "was not found on the path"),
    ],
)
def test_places_that_are_not_there(reference, message):
    with pytest.raises(ProgramError, match=message):
        program(reference)


def test_a_module_is_found_without_running_it_or_the_packages_around_it(tmp_path, monkeypatch):
    for name in ("noisy_pkg/__init__.py", "noisy_pkg/inner/__init__.py", "noisy_pkg/inner/mod.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('this ran')\ndef f(): pass\n")
    (tmp_path / "bare_space" / "deep").mkdir(parents=True)
    (tmp_path / "bare_space" / "deep" / "mod.py").write_text("raise RuntimeError('this ran')\ndef f(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("noisy_pkg.inner.mod", "bare_space.deep.mod", "noisy_pkg.inner"):
        found = program(f"{place}:f")
        assert (found.reference, found.root, bool(found.source)) == (f"{place}:f", str(tmp_path), True)
    assert not [name for name in sys.modules if name.startswith(("noisy_pkg", "bare_space"))]
    for place in ("noisy_pkg.inner.nothing", "noisy_pkg.inner.mod.f", "bare_space", "bare_space.nothing.mod"):
        with pytest.raises(ProgramError, match=f"'{place}' was not found on the path"):
            program(f"{place}:f")


def test_what_is_no_program():
    with pytest.raises(InvalidWorkload, match=r"must be a function or 'file.py:function', got 5"):
        program(5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def g(): pass\n", "must define a function 'f'; it does not"),
        ("def ff(): pass\n", "did you mean 'ff'"),
        ("f = 3\n", "must define a function 'f'"),
        ("import no_such_module\n", "must be importable; importing it raised ModuleNotFoundError"),
        ("1 / 0\n", "importing it raised ZeroDivisionError: division by zero"),
    ],
)
def test_files_without_the_function(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    found = program(str(tmp_path / "mine.py") + ":f")
    with pytest.raises(ProgramError, match=message):
        load(found)


@pytest.mark.parametrize("text", ["def f(:\n", "def f(): pass\nimport broken\n"])
def test_a_file_that_is_no_python(tmp_path, text):
    (tmp_path / "mine.py").write_text(text + "def g(): return broken\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    with pytest.raises(ProgramError, match="must be valid Python; found: invalid syntax"):
        program(str(tmp_path / "mine.py") + ":g")


# Pickles


def lambdas():
    return [lambda: top_level(1), lambda: top_level(2), lambda: top_level(1) + 0, lambda: top_level(1) - 0]


DISTINCT = {
    "partials of two functions": [functools.partial(top_level), functools.partial(other)],
    "partials with two arguments": [functools.partial(top_level, 1), functools.partial(top_level, 2)],
    "partials with two keywords": [functools.partial(top_level, width=1), functools.partial(top_level, width=2)],
    "lambdas on one line": lambdas(),
    "lambdas with defaults": [lambda width=width: width for width in (1, 2)],
    "closures over numbers": [make(1), make(2)],
    "closures over lists": [make([1]), make([2]), make([1, 2])],
    "closures over dicts": [make({"a": 1}), make({"a": 2}), make({"b": 1})],
    "closures over functions": [make(top_level), make(other), make(make(1)), make(make(2))],
    "objects": [Callable(1), Callable(2)],
    "methods": [Callable(1).__call__, Callable(2).__call__],
}


@pytest.mark.parametrize("kind", sorted(DISTINCT))
def test_programs_that_differ_are_different_programs(kind):
    functions = DISTINCT[kind]
    assert len({program(function) for function in functions}) == len(functions)


def test_each_is_loaded_as_itself(home):
    functions = [make(1), make([2]), functools.partial(top_level, 3), lambda: 4, Callable(5)]
    programs = [program(function) for function in functions]
    deposit(home, write=write_atomically)
    assert [load(found, home=home)() for found in programs] == [1, [2], 3, 4, 5]


IDENTITY = """
import functools
from dovetail.describe import program
from tests.describe.test_programs import DISTINCT
for kind in sorted(DISTINCT):
    print(*[program(function).source for function in DISTINCT[kind]])
"""


def test_who_a_program_is_does_not_change_from_process_to_process():
    runs = {
        subprocess.run(
            [sys.executable, "-c", IDENTITY],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


NOTEBOOK = """
from dovetail.describe import program
class Net:
    width = {width}
def helper():
    return Net().width
def build():
    return helper()
print(program(build).reference.partition(":")[0], program(build).source)
"""


def test_an_edit_of_a_notebooks_model_makes_another_program():
    def described(width):
        code = NOTEBOOK.format(width=width)
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return found.stdout.split()

    assert described(1) == described(1)
    assert described(1)[0] == "pickle"
    assert described(1) != described(2)


def test_a_store_keeps_its_programs_to_itself(home):
    assert carried(make(1), home)() == 1
    assert home.stat().st_mode & 0o777 == 0o700
    assert (home / "programs").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (home / "programs").iterdir())


def pickle_of(found, home):
    return home / "programs" / f"{found.function}.pickle"


@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_pickle_that_was_altered_is_not_loaded(home, at):
    found = program(make("x"))
    deposit(home, write=write_atomically)
    path = pickle_of(found, home)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(ProgramError, match="must carry this user's signature; it does not, so it was not loaded"):
        load(found, home=home)


def test_a_pickle_that_another_user_has_signed_is_not_loaded_however_its_store_came_here(home, tmp_path, monkeypatch):
    found = program(make("x"))
    with monkeypatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))
        deposit(home, write=write_atomically)
        assert load(found, home=home)() == "x"
        shutil.copy(key_path(), home / "key")  # as stores had theirs
    with pytest.raises(
        ProgramError, match=r"must carry this user's signature; .* from another user, machine or version"
    ):
        load(found, home=home)
    deposit(home, write=write_atomically)
    assert load(found, home=home)() == "x"


def test_a_pickle_under_the_name_of_another_is_not_loaded(home):
    one, other = program(make("x")), program(make("y"))
    deposit(home, write=write_atomically)
    pickle_of(one, home).write_bytes(pickle_of(other, home).read_bytes())
    with pytest.raises(ProgramError, match="must carry this user's signature"):
        load(one, home=home)


@pytest.fixture
def key(tmp_path, monkeypatch):
    """Where the key of a user is who has none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return key_path()


def test_the_key_is_made_once_outside_the_store_for_its_user_alone(home, key):
    found = program(make("x"))
    deposit(home, write=write_atomically)
    before = key.read_bytes()
    deposit(home, write=write_atomically)
    assert key.read_bytes() == before
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert not (home / "key").exists()
    assert load(found, home=home)() == "x"


def test_without_a_key_nothing_is_loaded(home, key):
    found = program(make("x"))
    deposit(home, write=write_atomically)
    key.unlink()
    with pytest.raises(ProgramError, match=r"must be signed under a key of this user's, .*; found: .* copy the key"):
        load(found, home=home)
    assert not key.exists()


def test_a_key_that_others_can_read_is_refused(home, key):
    found = program(make("x"))
    deposit(home, write=write_atomically)
    key.chmod(0o640)
    with pytest.raises(ProgramError, match=r"must be readable by its owner alone \(mode 0600\). Run: chmod 600"):
        load(found, home=home)


def test_a_key_that_was_cut_short_is_refused(home, key):
    found = program(make("x"))
    deposit(home, write=write_atomically)
    key.write_bytes(b"")
    with pytest.raises(ProgramError, match="must hold 32 bytes, it holds 0"):
        load(found, home=home)


def test_a_pickle_that_is_not_there(home):
    with pytest.raises(ProgramError, match="the pickled program 'f-1' must be in"):
        load(Program(reference="pickle:f-1"), home=home)
    with pytest.raises(ProgramError, match="lives in a store; open it through that store"):
        load(Program(reference="pickle:f-1"))


def test_what_cannot_be_pickled(tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(ProgramError, match="must be importable or picklable"):
        program(make(file))


# Parameters


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"width": 1, "dept": 2}, r"it takes \['width', 'depth'\], not 'dept'. Did you mean 'depth'\?"),
        ({"width": 1, "zzz": 2}, "not 'zzz'"),
        ({"depth": 1}, r"must get all its parameters: missing a required argument: 'width'"),
    ],
)
def test_parameters_that_do_not_fit(parameters, message):
    with pytest.raises(InvalidWorkload, match=message):
        check_parameters(lambda width, depth=1: None, parameters, name="f")


def test_a_seed_need_not_be_taken():
    assert check_parameters(lambda seed: None, {"seed": 1}, name="f") == {"seed": 1}
    assert check_parameters(lambda: None, {"seed": 1}, name="f") == {}
    assert check_parameters(lambda **rest: None, {"seed": 1, "a": 2}, name="f") == {"seed": 1, "a": 2}


# Workload files

SWEEP = """
import dovetail as dt
def f(width=1): ...
workload = dt.grid(f, width=[1, 2], steps=3)
other = dt.grid(f, width=[3], steps=3)
def made(): return dt.grid(f, width=[4], steps=3)
number = 5
"""


@pytest.mark.parametrize(("name", "widths"), [("", [1, 2]), (":other", [3]), (":made", [4])])
def test_workloads_of_a_file(tmp_path, name, widths):
    (tmp_path / "sweep.py").write_text(SWEEP)
    found = load_workload(f"{tmp_path}/sweep.py{name}")
    assert [task.parameters["width"] for task in found.tasks] == widths
    assert load(found.tasks[0].program)(width=1) is None


def test_files_without_the_workload(tmp_path):
    (tmp_path / "sweep.py").write_text(SWEEP)
    with pytest.raises(InvalidWorkload, match=r"named 'number'; found int. It has \['other', 'workload'\]"):
        load_workload(f"{tmp_path}/sweep.py:number")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(InvalidWorkload, match=r"named 'workload'; found NoneType. Make one with dt.grid"):
        load_workload(f"{tmp_path}/empty.py")
    with pytest.raises(ProgramError, match="must be a Python file; it is not there"):
        load_workload(f"{tmp_path}/nowhere.py")
