"""What is installed: which files come with Python or with a package, wherever that lies, and which versions, found
without importing them, since what was measured under others is not used.

All other files are the user's own: their source counts, where of an installed package the version does. An editable
install is the user's own.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import os
import platform
import sys
import sysconfig
import types
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

_SITES = {"site-packages", "dist-packages"}
_STANDARD = tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))
_OWN = str(Path(__file__).parents[1])


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file belongs to the standard library or to an installed package, also one that `PYTHONPATH`, a `.pth`
    file or `pip install --target` put outside the interpreter's own folders.

    >>> import json
    >>> is_installed(json.__file__), is_installed("/home/me/sweep.py")
    (True, False)
    """
    if file.startswith("<frozen") or _is_under(file, _STANDARD):
        return True
    path = Path(file)
    if any(part in _SITES or part.endswith(".egg") for part in path.parts[:-1]):
        return True
    return any(path.relative_to(folder).parts[0] in _distributed_names(folder) for folder in path.parents)


def is_dovetail(file: str) -> bool:
    """Whether a file is Dovetail's own, wherever it is installed.

    >>> is_dovetail(__file__), is_dovetail("/home/me/sweep.py")
    (True, False)
    """
    return _is_under(file, [_OWN])


def standard_paths() -> list[str]:
    """The entries of Python's path that are the standard library.

    >>> all(each in sys.path for each in standard_paths())
    True
    """
    # Below its folder lie the compiled ones and, in most installations, what was installed; beside it may lie a zip.
    packed = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return [
        each
        for each in sys.path
        if os.path.basename(each) == packed
        or (_is_under(os.path.join(each, ""), _STANDARD) and os.path.basename(each) not in _SITES)
    ]


def after_installed() -> int:
    """Where on Python's path a folder stands right after what is installed.

    >>> 0 < after_installed() <= len(sys.path)
    True
    """
    sites = (number for number, each in enumerate(sys.path, 1) if os.path.basename(each) in _SITES)
    return next(sites, len(sys.path))


@functools.cache
def project_folders(folder: Path) -> tuple[Path, ...]:
    """Where the packages of the project lie that a folder belongs to: the nearest folder above with a `pyproject.toml`,
    and `src` in it before that.

    >>> project_folders(Path("/"))
    ()
    """
    for above in (folder, *folder.parents):
        if (above / "pyproject.toml").is_file():
            return (above / "src", above) if (above / "src").is_dir() else (above,)
    return ()


@functools.cache
def editable_folders() -> tuple[Path, ...]:
    """Where packages lie that were installed as editable: their source is the user's own.

    >>> isinstance(editable_folders(), tuple)
    True
    """
    sites = [Path(each) for each in sys.path if os.path.basename(each) in _SITES]
    notes = (note for site in sites for note in site.glob("*.dist-info/direct_url.json"))
    found = [folder for note in notes if (folder := _editable(note)) is not None]
    return tuple(each for folder in sorted(found) for each in (folder / "src", folder) if each.is_dir())


def _editable(note: Path) -> Path | None:
    """The project that a distribution's note on where it came from names, if that is an editable one."""
    try:
        said = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    if not said.get("dir_info", {}).get("editable"):
        return None
    return Path(urllib.parse.unquote(urllib.parse.urlparse(str(said.get("url", ""))).path))


@functools.cache
def _distributed_names(folder: Path) -> frozenset[str]:
    """What lies directly in a folder because a distribution was installed into it; its record says so. The folder of
    an editable install has none, or one that lists nothing."""
    try:
        records = [entry for entry in os.listdir(folder) if entry.endswith(".dist-info")]
    except OSError:
        return frozenset()
    files = (importlib.metadata.Distribution.at(folder / record).files or () for record in records)
    return frozenset(file.parts[0] for each in files for file in each)


def _is_under(file: str, folders: Sequence[str]) -> bool:
    return file.startswith(tuple(os.path.join(folder, "") for folder in folders))


class StandardLibraryFirst(importlib.abc.MetaPathFinder):
    """Gives installed packages, and Dovetail, the standard library's modules, whatever files of the same names lie
    beside a program whose folder comes first on the path. The program's own imports are left as Python does them.

    >>> StandardLibraryFirst().find_spec("queue", None) is None  # it is not imported by an installed package
    True
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The standard library's module of that name, where it is for an installed package."""
        if path is not None or name not in sys.stdlib_module_names:
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("importlib", "_frozen_im")):
            frame = frame.f_back
        file = frame.f_code.co_filename
        if not (is_installed(file) or _is_under(file, [_OWN])):
            return None
        found = importlib.machinery.PathFinder.find_spec(name, standard_paths())
        if (
            found is None
            and name not in sys.builtin_module_names
            and importlib.machinery.FrozenImporter.find_spec(name) is None
        ):
            # One of another system's, such as winreg: a package that asks for it here is told so, as without that file.
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return found


@functools.cache
def versions() -> str:
    """The versions that decide how fast a program runs.

    >>> "python" in versions()
    True
    """
    found = [f"python {platform.python_version()}"]
    for name in ("torch", "numpy", "transformers"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)
