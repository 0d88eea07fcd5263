"""A page in one file: the live page's own modules and styles inside, with data in the place of a server.

A content security policy lets only this file's own scripts and styles run, by their digests, and forbids every load;
should an escape ever be missed, a task's name still could not run or fetch anything.
"""

import base64
import hashlib
import re
import string
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from dovetail.store import write_atomically
from dovetail.vocabulary import DovetailError
from dovetail.web.plain_data import dump

_ENTRY = "main.js"
_IMPORT = re.compile(r'^import \{ ([^}]*) \} from "\./([\w.]+)";\n', flags=re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|class|const) (\w+))", flags=re.MULTILINE)
_PAGE = string.Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>$title · Dovetail</title>
<style>$style</style>
</head>
<body>
<noscript><p class="note">This page needs JavaScript, all of which is inside this file.</p></noscript>
<script type="application/json" id="frozen">$data</script>
<script>$library</script>
<script>$script</script>
</body>
</html>
""")


def write_page(path: Path, frozen: dict[str, Any], *, title: str) -> Path:
    """Write the page of this data as one file; gives its path."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Logs may hold bytes that were no text; they become question marks.
        write_atomically(path, render(frozen, title=title).encode("utf-8", errors="replace"))
    except OSError as error:
        raise DovetailError(f"the page must be written to a file this user can write; found: {error}.") from error
    return path


def render(frozen: dict[str, Any], *, title: str) -> str:
    """The page of this data, as text."""
    style = asset("vendor", "uPlot.min.css") + asset("page", "style.css")
    library, script = asset("vendor", "uPlot.iife.min.js"), bundle()
    return _PAGE.substitute(
        policy=escape(_policy([library, script], style)),
        title=escape(title),
        style=style,
        data=_embed_json(frozen),
        library=library,
        script=script,
    )


def asset(folder: str, name: str) -> str:
    """The text of one of the page's own files."""
    return resources.files("dovetail.web").joinpath(folder, name).read_text(encoding="utf-8")


def bundle() -> str:
    """All modules of the page as one script: each in a function of its own, after those that it imports."""
    parts = ['"use strict";', "const modules = {};"]
    for name, text in _order_modules(_ENTRY, []):
        exported = [found[1] for found in _EXPORT.findall(text)]
        body = _IMPORT.sub(lambda found: f'const {{ {found[1]} }} = modules["{found[2]}"];\n', text)
        body = _EXPORT.sub(r"\1", body)
        parts.append(f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exported)} }};\n}})();')
    return "\n".join(parts)


def _order_modules(name: str, seen: list[str]) -> Iterator[tuple[str, str]]:
    seen.append(name)
    text = asset("page", name)
    for _, other in _IMPORT.findall(text):
        if other not in seen:
            yield from _order_modules(other, seen)
    yield name, text


def _policy(scripts: list[str], style: str) -> str:
    allowed = " ".join(_digest(script) for script in scripts)
    # Forms and base addresses are not covered by default-src.
    closed = "default-src 'none'; form-action 'none'; base-uri 'none'"
    return f"{closed}; script-src {allowed}; style-src {_digest(style)}; img-src data: blob:"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _embed_json(data: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return dump(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
