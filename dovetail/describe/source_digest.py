"""A digest of the code that a program reaches in its own files.

Starts at the function and follows the names it uses: definitions of the same file, and of files that it imports, at
their top or inside functions, from beside it, from its project, or from editable installs. Comments, formatting and
docstrings do not count, nor does the rest of the file, so editing the sweep leaves its programs alone and editing the
model makes another program. Installed packages are not followed.
"""

import ast
import dataclasses
import errno
import functools
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.describe.installed import editable_folders, is_installed, project_folders

Definitions = dict[str, list[ast.stmt]]

EVERYTHING = "*"  # all of a file, for those who import it whole
STARS = "from *"  # its imports of everything from elsewhere

# What tells one version of a file from another; None where there is no file.
_Stamp = tuple[int, int, int, int] | None
# The digests that were worked out, with every place that was looked at for them and what was there. To look again takes
# 0.2 ms where following the code takes 6, and a worker asks for each task of a sweep, which has few programs.
_known: dict[tuple[Path, str, Path], tuple[str, dict[Path, _Stamp]]] = {}
_MOST_KNOWN = 64
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


def digest(file: Path, function: str, *, root: Path | None = None) -> str:
    """A short digest of `function` in `file` and of all that it reaches; `root` is where its packages lie.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.py")
    ...     _ = file.write_text("def f():\\n    return g()\\ndef g():\\n    return 1\\n")
    ...     before = digest(file, "f")
    ...     _ = file.write_text("def f():\\n    return g()  # same\\ndef g():\\n    return 1\\nsweep = 3\\n")
    ...     same = digest(file, "f") == before
    ...     _ = file.write_text("def f():\\n    return g()\\ndef g():\\n    return 2\\n")
    ...     same, digest(file, "f") == before
    (True, False)
    """
    key = file.resolve(), function, (root or file.parent).resolve()
    known, looks = _known.get(key, ("", {}))
    if known and all(_stamp(path) == stamp for path, stamp in looks.items()):
        return known
    reached = _ReachedCode(root=key[2])
    reached.collect(key[0], function)
    found = hashlib.sha256("\n".join(reached.parts).encode()).hexdigest()[:16]
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[key] = found, reached.looks
    return found


def find_reached_files(file: Path, function: str, *, root: Path | None = None) -> set[Path]:
    """The files that `function` in `file` reaches, itself and the packages around them included: what it takes to
    import it elsewhere.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "b.py").write_text("def g():\\n    return 1\\n")
    ...     _ = Path(folder, "a.py").write_text("from b import g\\ndef f():\\n    return g()\\n")
    ...     sorted(path.name for path in find_reached_files(Path(folder, "a.py"), "f"))
    ['a.py', 'b.py']
    """
    top = (root or file.parent).resolve()
    reached = _ReachedCode(root=top)
    reached.collect(file.resolve(), function)
    files = {path for path, _ in reached.seen}
    packages = {folder / "__init__.py" for path in files for folder in path.parents if folder.is_relative_to(top)}
    return files | {path for path in packages if path.is_file()}


def digest_text(text: str) -> str:
    """A digest of a piece of source that stands alone, formatting aside.

    >>> digest_text("x = 1") == digest_text("x  =  1  # one")
    True
    """
    return hashlib.sha256(ast.dump(_bare(ast.parse(text))).encode()).hexdigest()[:16]


def has_relative_imports(file: Path) -> bool:
    """Whether a file imports anything by a dot, as only a module of a package can. What is no Python does not."""
    try:
        statements = ast.walk(ast.parse(file.read_text()))
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(each, ast.ImportFrom) and each.level > 0 for each in statements)


def arguments(file: Path, function: str) -> tuple[str, ...] | None:
    """The names of the arguments that `function` in `file` takes, read and not run; None where that cannot be told: it
    takes any, is decorated, or stands elsewhere.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "a.py")
    ...     _ = file.write_text("def f(width, *, rate=0.1):\\n    pass\\ndef g(**more):\\n    pass\\n")
    ...     arguments(file, "f"), arguments(file, "g"), arguments(file, "h")
    (('width', 'rate'), None, None)
    """
    found = _definitions(file, file.stat().st_mtime_ns, file.stat().st_size).get(function, [])
    if len(found) != 1 or not isinstance(found[0], ast.FunctionDef) or found[0].decorator_list or found[0].args.kwarg:
        return None
    taken = found[0].args
    return tuple(each.arg for each in [*taken.posonlyargs, *taken.args, *taken.kwonlyargs])


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ReachedCode:
    """What a function reaches, as far as it was followed, and where was looked for it: what is found depends on that
    and on nothing else that changes while a process runs."""

    root: Path
    seen: set[tuple[Path, str]] = dataclasses.field(default_factory=set)
    parts: list[str] = dataclasses.field(default_factory=list)
    looks: dict[Path, _Stamp] = dataclasses.field(default_factory=dict)

    def collect(self, file: Path, name: str) -> None:
        """Follow a name of a file."""
        if (file, name) in self.seen:
            return
        self.seen.add((file, name))
        for node in self._find_definitions(file, name):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.parts.append(ast.dump(node))
                followed = self._imports(file, node, name)
            else:
                self.parts.append(ast.dump(_bare(node)))
                followed = self._used_names(file, node)
            for other, used in followed:
                self.collect(other, used)

    def _find_definitions(self, file: Path, name: str) -> list[ast.stmt]:
        self.looks.setdefault(file, _stamp(file))  # before it is read: what is written meanwhile shows at the next look
        definitions = _definitions(file, file.stat().st_mtime_ns, file.stat().st_size)
        # A name that is not defined here may come from any module whose every name was imported.
        return definitions.get(name) or definitions.get(STARS, [])

    def _used_names(self, file: Path, node: ast.AST) -> Iterator[tuple[Path, str]]:
        yield from ((file, name) for name in sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}))
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                yield from self._imports(file, inner, None)

    def _imports(self, file: Path, node: ast.Import | ast.ImportFrom, name: str | None) -> Iterator[tuple[Path, str]]:
        """The (file, name) pairs behind an import of `name`, or of all that it imports."""
        for alias in node.names:
            if name is not None and alias.name != "*" and (alias.asname or alias.name).partition(".")[0] != name:
                continue
            if isinstance(node, ast.Import):
                yield from ((other, EVERYTHING) for other in self._find_modules(file, alias.name, 0))
                continue
            wanted = (name or EVERYTHING) if alias.name == "*" else alias.name
            yield from ((other, wanted) for other in self._find_modules(file, node.module or "", node.level))
            # What is imported from a package may be a module of it.
            inner = f"{node.module}.{alias.name}" if node.module else alias.name
            yield from ((other, EVERYTHING) for other in self._find_modules(file, inner, node.level))

    def _find_modules(self, file: Path, module: str, level: int) -> Iterator[Path]:
        if module.partition(".")[0] == "dovetail" and not level:
            return  # the tool is not part of the program, wherever it is installed
        if level:
            folders = [file.parents[level - 1]]
        else:
            near = [file.parent, self._above_package(file), self.root]
            folders = list(dict.fromkeys([*near, *project_folders(file.parent), *editable_folders()]))
        for folder in folders:
            path = folder.joinpath(*module.split(".")) if module else folder
            for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                if self._is_file(candidate) and (level or not is_installed(str(candidate))):
                    yield candidate.resolve()
                    return

    def _above_package(self, file: Path) -> Path:
        folder = file.parent
        while self._is_file(folder / "__init__.py"):
            folder = folder.parent
        return folder

    def _is_file(self, path: Path) -> bool:
        if path not in self.looks:
            self.looks[path] = _stamp(path)
        return self.looks[path] is not None


def _stamp(path: Path) -> _Stamp:
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    # The size counts because two edits may fall into one tick of the file system's clock, the file's number because a
    # link may lead elsewhere by now, from where other imports are found.
    return (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


# The size is part of the key because two edits may fall into one tick of the file system's clock.
@functools.lru_cache(maxsize=64)
def _definitions(file: Path, changed: int, size: int) -> Definitions:
    found: Definitions = {}
    statements = list(_statements(ast.parse(file.read_text()).body))
    for statement in statements:
        for name in _defined_names(statement):
            found.setdefault(name, []).append(statement)
    if EVERYTHING in found:
        found[STARS] = found[EVERYTHING]
    found[EVERYTHING] = [statement for statement in statements if not isinstance(statement, ast.Expr)]
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    # Definitions may stand inside a condition, a loop or a try at the top of the file.
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With | ast.For | ast.While):
            for field in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from _statements(handler.body)


def _defined_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    targets = [*getattr(statement, "targets", []), getattr(statement, "target", None)]
    return [n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]


def _bare(node: ast.AST) -> ast.AST:
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                inner.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return node
