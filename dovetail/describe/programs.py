"""Programs: from what the user writes to a reference, and from a reference back to a function."""

import contextlib
import difflib
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dovetail.describe import carried, source_digest, traits
from dovetail.describe.installed import (
    StandardLibraryFirst,
    after_installed,
    is_dovetail,
    is_installed,
    project_folders,
)
from dovetail.vocabulary import DovetailError, InvalidWorkload, Program, ProgramError, Task
from dovetail.vocabulary.records import thaw

PICKLED = "pickle:"
PRIVATE = "_dovetail_"

# When the files of modules in packages had last changed as these were imported.
_CHANGED: dict[str, int] = {}
# The files of users' modules that were imported for an earlier run and are imported anew.
_FORGOTTEN: set[str] = set()
# Modules beside the program files of each folder, while another folder has modules of the same names.
_ASIDE: dict[Path, dict[str, types.ModuleType]] = {}


def program(named: str | Program | Callable[..., Any]) -> Program:
    """The program that a reference or a function names; of a program, as its files have it now.

    >>> program("dovetail.vocabulary.units:show_bytes").reference
    'dovetail.vocabulary.units:show_bytes'
    """
    if isinstance(named, str):
        return _from_reference(named)
    if isinstance(named, Program):
        return _from_reference(named.reference, root=named.root)
    if not callable(named):
        raise InvalidWorkload(f"a program must be a function or 'file.py:function', got {named!r}.")
    place = _importable_place(named)
    if place is not None:
        return _from_reference(f"{place}:{named.__qualname__}")
    return _from_pickle(named)


def load(program: Program, *, home: Path | None = None) -> Callable[..., Any]:
    """The function that `program` names; `home` is the store that holds pickled ones.

    >>> load(Program(reference="dovetail.vocabulary.units:show_bytes"))(2048)
    '2.0 KiB'
    """
    if program.reference.startswith(PICKLED):
        if home is None:
            raise ProgramError(f"{program.reference} lives in a store; open it through that store.")
        return carried.fetch(home, _file_name(program.reference))
    place, _, name = program.reference.rpartition(":")
    module = load_file(Path(place)) if place.endswith(".py") else import_module(place, root=program.root)
    function = getattr(module, name, None)
    if not callable(function):
        near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ProgramError(f"{place} must define a function {name!r}; it does not{hint}")
    return function  # type: ignore[no-any-return]


def programs_of(task: Task) -> list[Program]:
    """The programs that it takes to build a task: its own and, of a program of Dovetail's that builds on another one,
    that one, which is its parameter `program`.

    >>> from dovetail.vocabulary import Stop
    >>> inner = {"reference": "digits.py:digits", "source": "9f2c"}
    >>> outer = Program(reference="dovetail.selection.student:scoring_student")
    >>> task = Task(name="score", program=outer, parameters={"program": inner}, stop=Stop(steps=9))
    >>> [each.function for each in programs_of(task)]
    ['scoring_student', 'digits']
    """
    inner = task.parameters.get("program") if task.program.reference.startswith("dovetail.") else None
    return [task.program, *([Program(**inner)] if isinstance(inner, Mapping) else [])]


def check_source(program: Program) -> None:
    """Raise `ProgramError` where a program's code was edited since it was described: what it builds now would be taken
    for what it built then.

    >>> check_source(Program(reference="dovetail.vocabulary.units:show_bytes"))  # nobody said what its code was
    """
    if not program.source or program.reference.startswith(PICKLED):
        return
    if (found := _from_reference(program.reference, root=program.root).source) != program.source:
        raise ProgramError(
            f"the code of {program.function!r} must stay as it was when the workload was described ({program.source}); "
            f"it was edited since ({found}). Run the workload again to train what it is now."
        )


def check_parameters(function: Callable[..., Any], parameters: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """The arguments to call `function` with, lists and dicts its own to change. A `seed` that it does not take
    seeds the generators all the same.

    >>> check_parameters(lambda width: width, {"width": 1, "seed": 2}, name="f")
    {'width': 1}
    """
    signature = inspect.signature(function)
    accepted = signature.parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
        return {key: thaw(value) for key, value in parameters.items()}
    arguments = {key: thaw(value) for key, value in parameters.items() if key in accepted or key != "seed"}
    for key in arguments:
        if key not in accepted:
            near = difflib.get_close_matches(key, accepted, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidWorkload(
                f"program {name!r} must take every parameter; it takes {list(accepted)}, not {key!r}.{hint}"
            )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InvalidWorkload(f"program {name!r} must get all its parameters: {error}; it takes {signature}.") from None
    return arguments


def arguments_of(program: Program) -> tuple[str, ...] | None:
    """The names of the parameters that a program takes, read from its file and not run; None where that cannot be told.

    >>> arguments_of(Program(reference="/nowhere.py:f"))
    """
    place, _, name = program.reference.rpartition(":")
    file = Path(place) if place.endswith(".py") else module_file(place, root=program.root)
    return source_digest.arguments(file, name) if file and file.is_file() else None


def check_names(program: Program, names: Iterable[str]) -> None:
    """Refuse a parameter that a program does not take, as far as its file tells. A `seed` seeds the generators anyway.

    >>> check_names(Program(reference="/nowhere.py:f"), ["width"])
    """
    taken = arguments_of(program)
    if taken is None:
        return
    for name in names:
        if name not in taken and name != "seed":
            near = difflib.get_close_matches(name, taken, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InvalidWorkload(
                f"program {program.function!r} must take every parameter; it takes {list(taken)}, not {name!r}.{hint}"
            )


def load_file(path: Path) -> types.ModuleType:
    """The module in a file, run once for each version of the file; its folder is importable from it."""
    if not path.is_file():
        raise ProgramError(f"{path} must be a Python file; it is not there.")
    path = path.resolve()
    _enter(path.parent)
    _add_paths(project_folders(path.parent))
    if name := _name_in_package(path):
        return _load_in_package(name, path)
    return _load_file(path, path.stat().st_mtime_ns)


def _add_paths(folders: Iterable[Path]) -> None:
    """Let imports find what lies in these folders, after all else."""
    sys.path += [str(folder) for folder in folders if str(folder) not in sys.path]


def _name_in_package(path: Path) -> str:
    """The full name of a file's module where it imports its neighbours by a dot; empty where it stands by itself."""
    if not (path.parent / "__init__.py").is_file() or not source_digest.has_relative_imports(path):
        return ""
    top = path.parent
    while (top.parent / "__init__.py").is_file():
        top = top.parent
    return ".".join(path.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__")


def _load_in_package(name: str, path: Path) -> types.ModuleType:
    """The module of that name, as imports find it, anew where its file has changed since."""
    _add_paths([path.parents[name.count(".") + (path.name == "__init__.py")]])
    changed, loaded = path.stat().st_mtime_ns, sys.modules.get(name)
    if loaded is not None and _CHANGED.get(name) not in (None, changed):
        del sys.modules[name]
    _CHANGED[name] = changed
    module = import_module(name)
    if not _is_file(module, path):
        raise ProgramError(
            f"{path} must be what 'import {name}' finds, because it imports its neighbours by a dot; that is "
            f"{getattr(module, '__file__', None)}. Rename the package, or change PYTHONPATH."
        )
    return module


def _is_file(module: types.ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path


def forget_modules() -> None:
    """Import users' modules anew when they are next wanted: their files may have been edited since. What is installed
    stays."""
    forgotten = {name: module for name, module in list(sys.modules.items()) if _is_users(name, module)}
    for name, module in forgotten.items():
        del sys.modules[name]
        _FORGOTTEN.add(str(getattr(module, "__file__", None)))
        around, _, short = name.rpartition(".")
        # A package that stays would go on giving the old one to `from package import name`.
        if around and getattr(parent := sys.modules.get(around), short, None) is module:
            delattr(parent, short)
    _ASIDE.clear()
    _load_file.cache_clear()
    importlib.invalidate_caches()


def _is_users(name: str, module: Any) -> bool:
    """Whether a module is the user's own. A package without `__init__.py` has no file, but folders."""
    if name.partition(".")[0] in ("dovetail", "__main__"):
        return False
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", None) or ())
    # Some of torch's modules name files that are nowhere.
    return bool(places) and all(os.path.isabs(str(each)) and not is_installed(str(each)) for each in places)


def _enter(folder: Path, *, first: bool = True) -> None:
    """Let plain imports find what lies in `folder`: programs of two folders may each have a `model.py` beside them,
    and one worker may run both. It comes before all else on the path, as that of a script, or else after what is
    installed."""
    others = _ASIDE.keys() - {folder}
    within = tuple(os.path.join(other, "") for other in others)
    for name, module in list(sys.modules.items()) if others else ():
        # Thousands of modules are elsewhere; to take each one's path apart would take a tenth of a second.
        if not str(getattr(module, "__file__", None)).startswith(within):
            continue
        home = _home(module)
        if home in others and _has(folder, name.partition(".")[0]):
            _ASIDE[home][name] = sys.modules.pop(name)
    sys.modules.update(_ASIDE.get(folder, {}))
    _ASIDE[folder] = {}
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0 if first else after_installed(), str(folder))
    if not any(isinstance(finder, StandardLibraryFirst) for finder in sys.meta_path):
        sys.meta_path.insert(0, StandardLibraryFirst())


def _home(module: types.ModuleType) -> Path | None:
    """The folder from which a module was imported, packages around it included."""
    file, name = getattr(module, "__file__", None), getattr(module, "__name__", "")
    if not file or name.startswith(PRIVATE):
        return None
    depth = name.count(".") + (Path(file).name == "__init__.py")
    return Path(file).parents[depth] if depth < len(Path(file).parents) else None


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


@functools.lru_cache(maxsize=64)
def _load_file(path: Path, changed: int) -> types.ModuleType:
    name = f"{PRIVATE}{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    return _execute(str(path), lambda: spec.loader.exec_module(module) or module)  # type: ignore[union-attr]


def import_module(name: str, *, root: str = "") -> types.ModuleType:
    """The module of that name; `root` is the folder from which it is imported, where that is known."""
    if root:
        _enter(Path(root), first=False)
        _add_paths(project_folders(Path(root)))
    _add_project()
    return _execute(name, lambda: importlib.import_module(name))


def _add_project() -> None:
    """Let imports find what lies in the working folder and in the project around it."""
    folder = Path.cwd()
    _add_paths([folder, *project_folders(folder)])


@contextlib.contextmanager
def as_a_script(place: str) -> Iterator[None]:
    """Run a user's file as Python runs it by itself: it has no arguments, for those of this process are not meant for
    it. What it prints goes to the error stream, because what a command answers is on the other.

    >>> with as_a_script("sweep.py"):
    ...     found = sys.argv
    >>> found
    ['sweep.py']
    """
    arguments, sys.argv = sys.argv, [place]
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments


def _execute(place: str, run: Callable[[], types.ModuleType]) -> types.ModuleType:
    try:
        with as_a_script(place):
            return run()
    except DovetailError:
        raise
    except (Exception, SystemExit) as error:
        raise ProgramError(
            f"{place} must be importable; importing it raised {type(error).__name__}: {error}.{_say_again(error)}"
        ) from error


def _say_again(error: BaseException) -> str:
    """What may be behind an error of a file that this process has imported before."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    again = next((file for file in reversed(files) if file in _FORGOTTEN), None)
    if again is None:
        return ""
    return (
        f" This worker had imported {Path(again).name} before, in an earlier run of the session: what that registers "
        f"with a library (torch.library, for one) is there already. Register only what is not there yet, or use "
        f"dt.run instead of the session: its workers are new."
    )


def _from_reference(reference: str, *, root: str = "") -> Program:
    place, _, name = Program(reference=reference).reference.rpartition(":")
    if not place.endswith(".py"):
        file = module_file(place, root=root) or _find_module(place)
        above = file.parents[place.count(".") + (file.name == "__init__.py")]
        found = "" if is_installed(str(file)) or is_dovetail(str(file)) else str(above.resolve())
        return Program(reference=reference, source=_digest(file, name, above), root=found)
    path = Path(place).resolve()
    if not path.is_file():
        raise ProgramError(f"a program's file must exist; {path} does not.")
    return Program(reference=f"{path}:{name}", source=_digest(path, name, path.parent))


def module_file(place: str, *, root: str) -> Path | None:
    """The file of a module that is imported from the folder `root`, found without importing anything.

    >>> module_file("dovetail.vocabulary.units", root="/nowhere")
    """
    path = Path(root, *place.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py") if root else ()
    return next((each for each in candidates if each.is_file()), None)


def _find_module(place: str) -> Path:
    """The file of a module that can be imported here, found without importing it or the packages around it: their
    code is not run by whoever only describes a task or takes one on."""
    _add_project()
    top, *inner = place.split(".")
    try:
        spec = importlib.util.find_spec(top)
        for part in inner:
            # By its last part alone: a package of folders only would look for the module of the one around it.
            around = spec.submodule_search_locations if spec is not None else None
            spec = importlib.machinery.PathFinder.find_spec(part, list(around)) if around else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ProgramError(f"a program's module must be importable; {place!r} was not found on the path.")
    return Path(spec.origin)


def _digest(file: Path, name: str, root: Path) -> str:
    try:
        return source_digest.digest(file, name, root=root)
    except (SyntaxError, ValueError) as error:  # ValueError: not UTF-8, or zero bytes
        raise ProgramError(f"{file} and what it imports must be valid Python; found: {error}.") from None


def _importable_place(function: Callable[..., Any]) -> str | None:
    # Only what stands at the top level of a file can be found there again by name.
    name, module = getattr(function, "__qualname__", "."), sys.modules.get(getattr(function, "__module__", ""))
    if "." in name or "<" in name or getattr(module, name, None) is not function:
        return None
    file = getattr(module, "__file__", None)
    if module is None or file is None or not str(file).endswith(".py"):
        return None
    if module.__name__ != "__main__" and ("." in module.__name__ or is_installed(str(file))):
        return module.__name__
    return str(Path(file).resolve())


def _from_pickle(function: Callable[..., Any]) -> Program:
    digest = traits.digest_of(function)
    name = getattr(function, "__name__", type(function).__name__).strip("<>").replace(".", "-")
    # There may be many lambdas and closures of one name; of a notebook's functions only one, so that tasks are called
    # after it, and an edited one is known to be another version of the same.
    is_plain = getattr(function, "__qualname__", ".") == name
    reference = f"{PICKLED}{digest}:{name}" if is_plain else f"{PICKLED}{name}-{digest}"
    carried.carry(_file_name(reference), function)
    return Program(reference=reference, source=digest)


def _file_name(reference: str) -> str:
    return reference.removeprefix(PICKLED).replace(":", "-")
