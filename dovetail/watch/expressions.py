"""Conditions on columns in words, such as `power_drain > 0.9 and state in ('NY', 'CA')`: parsed, never run as code."""

import ast
import keyword
import operator
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.vocabulary import DovetailError

if TYPE_CHECKING:
    import numpy as np

_EXAMPLE = "'power_drain > 0.9'"
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_WORDS = {"and", "or", "not", "in", "is", "True", "False", "None"}
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def match_rows(text: str, names: Sequence[str], read: Callable[[str], "np.ndarray"], *, rows: int) -> "np.ndarray":
    """Which rows a condition holds for. `read` gives a column by its name. A row without a value matches nothing.

    Columns whose names are no words of Python, such as `train/loss` or `class`, are found by their names all the same;
    those named as a number or a word of conditions (`0`, `in`) in backticks.

    >>> import numpy as np
    >>> columns = {"train/loss": np.array([1.0, np.nan, 4.0]), "norm": np.array(["none", "none", "layer"])}
    >>> match_rows("train/loss > 3 or norm == 'none'", list(columns), columns.__getitem__, rows=3).tolist()
    [True, True, True]
    """
    import numpy as np

    plain, stand_ins = _with_words(text, names)
    try:
        tree = ast.parse(plain.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        problem = getattr(error, "msg", None) or str(error) or type(error).__name__
        raise DovetailError(
            f"a condition must be a comparison of columns, such as {_EXAMPLE}, got {text!r}: {problem}."
        ) from None
    reader = _ConditionReader(text, names, read, stand_ins)
    with np.errstate(all="ignore"):  # a division by zero gives infinity, which compares as it should
        try:
            found = np.asarray(reader.truth(tree.body))
        except TypeError as error:
            raise DovetailError(
                f"a condition must compare numbers with numbers and words with words; in {text!r}: {error}."
            ) from None
    return np.broadcast_to(found, (rows,)).copy()


def _with_words(text: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The text with each column whose name is no word of Python replaced by one that is, outside quotes."""
    odd = sorted((name for name in names if name and not _is_word(name)), key=len, reverse=True)
    stand_ins = {f"_column_{number}": name for number, name in enumerate(odd)}
    if not odd:
        return text, {}
    # Quotes first, so that what is within them stays; no column begins or ends inside a word.
    pattern = "|".join([r"'[^']*'", r'"[^"]*"', *map(_pattern, odd)])
    back = {name: word for word, name in stand_ins.items()}

    def replace(match: re.Match[str]) -> str:
        return back.get(match[0].strip("`"), match[0])

    return re.sub(pattern, replace, text), stand_ins


def _is_word(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _pattern(name: str) -> str:
    """Of a column's name in a condition: in backticks where it would else be a number or a word of conditions."""
    if name in _WORDS or _is_number(name):
        return f"`{re.escape(name)}`"
    return rf"`?(?<![\w/]){re.escape(name)}(?![\w/])`?"


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


class _ConditionReader:
    def __init__(
        self, text: str, names: Sequence[str], read: Callable[[str], "np.ndarray"], stand_ins: dict[str, str]
    ) -> None:
        self._text, self._names, self._read, self._stand_ins = text, names, read, stand_ins

    def value(self, node: ast.AST) -> Any:
        """What a part of the condition comes to: an array, a constant, or a tuple of constants."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
            return node.value
        if isinstance(node, ast.Name):
            return self._column(self._stand_ins.get(node.id, node.id))
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return tuple(self.value(each) for each in node.elts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ~self.truth(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            return _ARITHMETIC[type(node.op)](self.value(node.left), self.value(node.right))
        if isinstance(node, ast.BoolOp):
            return self._joined(node)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        raise self._refusal(node)

    def _joined(self, node: ast.BoolOp) -> Any:
        found = [self.truth(each) for each in node.values]
        combine = operator.and_ if isinstance(node.op, ast.And) else operator.or_
        answer = found[0]
        for each in found[1:]:
            answer = combine(answer, each)
        return answer

    def truth(self, node: ast.AST) -> Any:
        """The same of a part that must be true or false for each row, such as a column of booleans."""
        import numpy as np

        found = np.asarray(self.value(node))
        if found.dtype == bool:
            return found
        if found.dtype == float and np.isin(found, (0.0, 1.0)).all():  # a column of booleans
            return found == 1.0
        raise self._refusal(node, "be true or false for each row")

    def _comparison(self, node: ast.Compare) -> Any:
        left, answer = self.value(node.left), True
        for how, each in zip(node.ops, node.comparators, strict=True):
            right = self.value(each)
            answer = self._compare(how, left, right, node) & answer
            left = right
        return answer

    def _compare(self, how: ast.cmpop, left: Any, right: Any, node: ast.AST) -> Any:
        import numpy as np

        if isinstance(how, ast.In | ast.NotIn) and isinstance(right, tuple):
            members = [value for value in right if value is not None]
            found = np.logical_or.reduce([_equal(left, value) for value in members]) if members else False
            return ~np.asarray(found) if isinstance(how, ast.NotIn) else found
        if isinstance(how, ast.Is | ast.IsNot) or left is None or right is None:
            found = _missing(left if right is None else right)
            return ~found if isinstance(how, ast.IsNot | ast.NotEq) else found
        if type(how) not in _COMPARE:
            raise self._refusal(node)
        if isinstance(how, ast.Eq | ast.NotEq):
            found = _equal(left, right)
            return ~np.asarray(found) & ~_missing(left) & ~_missing(right) if isinstance(how, ast.NotEq) else found
        return _ordered(_COMPARE[type(how)], left, right)

    def _column(self, name: str) -> Any:
        if name not in self._names:
            import difflib

            near = difflib.get_close_matches(name, self._names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f". There are {', '.join(self._names)}."
            raise DovetailError(f"a condition must name columns of the table; {self._text!r} names {name!r}{hint}")
        return self._read(name)

    def _refusal(
        self, node: ast.AST, must: str = "consist of comparisons, and, or, not, in and arithmetic"
    ) -> DovetailError:
        return DovetailError(
            f"a condition must {must}, such as {_EXAMPLE}, got {ast.unparse(node)!r} in {self._text!r}."
        )


def _missing(values: Any) -> Any:
    import numpy as np

    found = np.asarray(values, dtype=object if isinstance(values, str) else None)
    if found.dtype.kind == "f":
        return np.isnan(found)
    if found.dtype.kind == "O":
        return np.array([each is None or each != each for each in found.ravel()], dtype=bool).reshape(found.shape)
    return np.zeros(found.shape, dtype=bool)


def _equal(left: Any, right: Any) -> Any:
    import numpy as np

    return np.asarray(np.equal(left, right, dtype=object) if _has_objects(left, right) else left == right, dtype=bool)


def _ordered(compare: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """A comparison by order, false where either is missing."""
    import numpy as np

    if not _has_objects(left, right):
        return compare(left, right)
    there = ~(_missing(left) | _missing(right))
    found = np.zeros(there.shape, dtype=bool)
    wide = [np.broadcast_to(np.asarray(each, dtype=object), there.shape) for each in (left, right)]
    found[there] = [compare(a, b) for a, b in zip(wide[0][there], wide[1][there], strict=True)]
    return found


def _has_objects(*values: Any) -> bool:
    return any(getattr(value, "dtype", None) is not None and value.dtype.kind in "OUS" for value in values)
