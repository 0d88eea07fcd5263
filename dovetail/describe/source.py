"""A digest of the code that a program reaches in its own files.

Starts at the function and follows the names it uses: definitions of the same file, and of files beside it that
it imports from. Comments, formatting and docstrings do not count, nor does the rest of the file, so editing the
sweep leaves its programs alone and editing the model makes another program. Installed packages are not followed.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

Definitions = dict[str, list[ast.stmt]]


def digest(file: Path, function: str) -> str:
    """A short digest of `function` in `file` and of all that it reaches.

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
    _collect(file.resolve(), function, set(), parts)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def digest_text(text: str) -> str:
    """A digest of a piece of source that stands alone, formatting aside.

    >>> digest_text("x = 1") == digest_text("x  =  1  # one")
    True
    """
    return hashlib.sha256(ast.dump(_bare(ast.parse(text))).encode()).hexdigest()[:16]


def _collect(file: Path, name: str, seen: set[tuple[Path, str]], parts: list[str]) -> None:
    if (file, name) in seen:
        return
    seen.add((file, name))
    for node in _definitions(file, file.stat().st_mtime_ns).get(name, []):
        if isinstance(node, ast.Import | ast.ImportFrom):
            parts.append(ast.dump(node))
            for other, other_name in _imports(file, node, name):
                _collect(other, other_name, seen, parts)
        else:
            parts.append(ast.dump(_bare(node)))
            for used in sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}):
                _collect(file, used, seen, parts)


@functools.lru_cache(maxsize=64)
def _definitions(file: Path, changed: int) -> Definitions:
    found: Definitions = {}
    for statement in _statements(ast.parse(file.read_text()).body):
        for name in _defined(statement):
            found.setdefault(name, []).append(statement)
    found["*"] = [s for s in _statements(ast.parse(file.read_text()).body) if not isinstance(s, ast.Expr)]
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    # Definitions may stand inside a condition or a try at the top of the file.
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(statement, field, []))


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in statement.names]
    targets = [*getattr(statement, "targets", []), getattr(statement, "target", None)]
    return [n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]


def _imports(file: Path, node: ast.Import | ast.ImportFrom, name: str) -> Iterator[tuple[Path, str]]:
    for alias in node.names:
        if (alias.asname or alias.name).partition(".")[0] != name:
            continue
        if isinstance(node, ast.Import):
            yield from ((other, "*") for other in _beside(file, alias.name, 0))
        else:
            yield from ((other, alias.name) for other in _beside(file, node.module or "", node.level))


def _beside(file: Path, module: str, level: int) -> Iterator[Path]:
    folder = file.parent if level <= 1 else file.parents[level - 1]
    path = folder.joinpath(*module.split(".")) if module else folder
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            yield candidate.resolve()
            return


def _bare(node: ast.AST) -> ast.AST:
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                inner.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return node
