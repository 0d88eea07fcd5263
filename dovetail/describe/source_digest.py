"""A digest of the code that a program reaches in its own files.

Starts at the function and follows the names it uses: definitions of the same file, and of files that it imports, at
their top or inside functions, from beside it, from its project, or from editable installs. Comments, formatting and
docstrings do not count, nor does the rest of the file, so editing the sweep leaves its programs alone and editing the
model makes another program. Installed packages are not followed.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from dovetail.describe.installed import editable_folders, is_installed, project_folders

Definitions = dict[str, list[ast.stmt]]

EVERYTHING = "*"  # all of a file, for those who import it whole
STARS = "from *"  # its imports of everything from elsewhere


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
    parts: list[str] = []
    _collect(file.resolve(), function, (root or file.parent).resolve(), set(), parts)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


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
    seen: set[tuple[Path, str]] = set()
    top = (root or file.parent).resolve()
    _collect(file.resolve(), function, top, seen, [])
    files = {path for path, _ in seen}
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


def _collect(file: Path, name: str, root: Path, seen: set[tuple[Path, str]], parts: list[str]) -> None:
    if (file, name) in seen:
        return
    seen.add((file, name))
    for node in _find_definitions(file, name):
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts.append(ast.dump(node))
            for other, other_name in _imports(file, node, name, root):
                _collect(other, other_name, root, seen, parts)
        else:
            parts.append(ast.dump(_bare(node)))
            for other, used in _used_names(file, node, root):
                _collect(other, used, root, seen, parts)


def _find_definitions(file: Path, name: str) -> list[ast.stmt]:
    definitions = _definitions(file, file.stat().st_mtime_ns, file.stat().st_size)
    # A name that is not defined here may come from any module whose every name was imported.
    return definitions.get(name) or definitions.get(STARS, [])


def _used_names(file: Path, node: ast.AST, root: Path) -> Iterator[tuple[Path, str]]:
    yield from ((file, name) for name in sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}))
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import | ast.ImportFrom):
            yield from _imports(file, inner, None, root)


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


def _imports(file: Path, node: ast.Import | ast.ImportFrom, name: str | None, root: Path) -> Iterator[tuple[Path, str]]:
    """The (file, name) pairs behind an import of `name`, or of all that it imports."""
    for alias in node.names:
        if name is not None and alias.name != "*" and (alias.asname or alias.name).partition(".")[0] != name:
            continue
        if isinstance(node, ast.Import):
            yield from ((other, EVERYTHING) for other in _find_modules(file, alias.name, 0, root))
            continue
        wanted = (name or EVERYTHING) if alias.name == "*" else alias.name
        yield from ((other, wanted) for other in _find_modules(file, node.module or "", node.level, root))
        # What is imported from a package may be a module of it.
        inner = f"{node.module}.{alias.name}" if node.module else alias.name
        yield from ((other, EVERYTHING) for other in _find_modules(file, inner, node.level, root))


def _find_modules(file: Path, module: str, level: int, root: Path) -> Iterator[Path]:
    if module.partition(".")[0] == "dovetail" and not level:
        return  # the tool is not part of the program, wherever it is installed
    if level:
        folders = [file.parents[level - 1]]
    else:
        near = [file.parent, _above_package(file), root]
        folders = list(dict.fromkeys([*near, *project_folders(file.parent), *editable_folders()]))
    for folder in folders:
        path = folder.joinpath(*module.split(".")) if module else folder
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file() and (level or not is_installed(str(candidate))):
                yield candidate.resolve()
                return


def _above_package(file: Path) -> Path:
    folder = file.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _bare(node: ast.AST) -> ast.AST:
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                inner.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return node
