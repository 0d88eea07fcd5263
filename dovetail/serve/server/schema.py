"""What a model takes: names, types and shapes, by an example; and requests read and checked by it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from dovetail.vocabulary import DovetailError


class BadRequest(DovetailError):
    """A request that the schema refuses.

    >>> issubclass(BadRequest, DovetailError)
    True
    """


@dataclasses.dataclass(frozen=True, slots=True)
class InputField:
    """One tensor of the inputs, without its rows: a dimension of None may be of any length, alike in a request.
    `seen` is the first row of the example."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    seen: numpy.ndarray = dataclasses.field(compare=False, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """The tensors that a model takes. `kind` is how they are given to it: one tensor, several, or several by name.

    >>> schema = Schema.of(numpy.zeros((1, 3), dtype="float32"))
    >>> schema.read({"inputs": [[1, 2, 3], [4, 5, 6]]})[0].shape
    (2, 3)
    >>> schema.read({"inputs": [[1, 2]]})
    Traceback (most recent call last):
    dovetail.serve.server.schema.BadRequest: inputs must have the shape [rows, 3]; got [1, 2].
    """

    kind: str
    fields: tuple[InputField, ...]

    @classmethod
    def of(cls, example: Any) -> "Schema":
        """That of inputs with a row or more: an array, a tuple of arrays, or arrays by name. Named integers are taken
        for tokens, whose number may vary."""
        if isinstance(example, Mapping):
            return cls("named", tuple(_field(name, numpy.asarray(value), True) for name, value in example.items()))
        if isinstance(example, tuple):
            parts = (_field(f"input_{place}", numpy.asarray(value), False) for place, value in enumerate(example))
            return cls("several", tuple(parts))
        return cls("one", (_field("inputs", numpy.asarray(example), False),))

    def read(self, body: Any) -> list[numpy.ndarray]:
        """The arrays of a request's JSON, one for each field, with as many rows each."""
        if not isinstance(body, Mapping) or "inputs" not in body:
            raise BadRequest('a request must be an object with "inputs".')
        given = body["inputs"]
        if self.kind == "one":
            return self.check([_array(self.fields[0], given)])
        if not isinstance(given, Mapping) or set(given) != {field.name for field in self.fields}:
            names = [field.name for field in self.fields]
            found = sorted(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
            raise BadRequest(f"inputs must be an object with the names {names}; got {found}.")
        return self.check([_array(field, given[field.name]) for field in self.fields])

    def check(self, arrays: Sequence[numpy.ndarray]) -> list[numpy.ndarray]:
        """The same, where they have the types and shapes that the model takes."""
        for field, array in zip(self.fields, arrays, strict=True):
            wanted = ["rows", *(size if size is not None else "any" for size in field.shape)]
            fits = array.ndim == len(wanted) and all(
                size is None or size == found for size, found in zip(field.shape, array.shape[1:], strict=False)
            )
            if not fits:
                raise BadRequest(
                    f"{field.name} must have the shape [{', '.join(map(str, wanted))}]; got {list(array.shape)}."
                )
        counts = {len(array) for array in arrays}
        if len(counts) != 1 or 0 in counts:
            raise BadRequest(f"inputs must have the same number of rows, one or more; got {sorted(counts)}.")
        return list(arrays)

    def to_inputs(self, arrays: Sequence[Any]) -> Any:
        """Inputs as the model is given them."""
        if self.kind == "one":
            return arrays[0]
        if self.kind == "several":
            return tuple(arrays)
        return {field.name: array for field, array in zip(self.fields, arrays, strict=True)}

    def example(self, rows: int) -> list[numpy.ndarray]:
        """So many times the first row of the program's own batches: another one might take another time, be longer than
        the model has places for, or be what it refuses, such as lengths of 0."""
        return [numpy.repeat(field.seen[None], rows, axis=0) for field in self.fields]

    def describe(self) -> dict[str, Any]:
        """For people and programs that ask what to send."""
        return {
            "kind": self.kind,
            "inputs": [
                {"name": field.name, "dtype": field.dtype, "shape": ["rows", *field.shape]} for field in self.fields
            ],
        }


def _field(name: str, value: numpy.ndarray, may_vary: bool) -> InputField:
    if value.ndim == 0 or value.dtype.kind not in "fiub":
        raise DovetailError(
            f"a model is served where its inputs are arrays of numbers with rows; {name} is {value.dtype}."
        )
    varies = may_vary and value.dtype.kind in "iu"
    shape = tuple(None if varies else size for size in value.shape[1:])
    return InputField(name, str(value.dtype), shape, seen=numpy.nan_to_num(value[0]))  # JSON has no NaN


def _array(field: InputField, value: Any) -> numpy.ndarray:
    try:
        found = numpy.asarray(value)
    except ValueError:
        raise BadRequest(f"{field.name} must be rows of the same length; got rows of unlike lengths.") from None
    if found.size and found.dtype.kind not in "fiub":
        given = "text" if found.dtype.kind == "U" else "null, or what is no number of 64 bits"
        raise BadRequest(f"{field.name} must be numbers; got {given}.")
    wanted = numpy.dtype(field.dtype)
    if found.size and wanted.kind in "iu":
        bounds = numpy.iinfo(wanted)  # what lies outside would come round at the other end: 256 in 8 bits is 0
        if found.dtype.kind == "f" or found.min() < bounds.min or found.max() > bounds.max:
            least, most = found.min(), found.max()
            raise BadRequest(
                f"{field.name} must be whole numbers ({field.dtype}), from {bounds.min} to {bounds.max} and without a "
                f"point; got {least} to {most}, as {found.dtype}."
            )
    with numpy.errstate(over="ignore"):
        return found.astype(wanted)
