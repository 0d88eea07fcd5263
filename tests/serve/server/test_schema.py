import numpy
import pytest

from dovetail.serve.server.schema import BadRequest, Schema

ONE = Schema.of(numpy.zeros((1, 2, 3), dtype="float32"))
BYTES = Schema.of(numpy.zeros((1, 2), dtype="uint8"))
NAMED = Schema.of({"input_ids": numpy.zeros((1, 7), dtype="int64"), "mask": numpy.zeros((1, 7), dtype="int64")})


def test_requests_become_arrays():
    (found,) = ONE.read({"inputs": numpy.arange(12).reshape(2, 2, 3).tolist()})
    assert (found.dtype, found.shape) == ("float32", (2, 2, 3))
    ids, mask = NAMED.read({"inputs": {"mask": [[1, 1]], "input_ids": [[5, 6]]}})
    assert ids.tolist() == [[5, 6]]
    assert set(NAMED.to_inputs([ids, mask])) == {"input_ids", "mask"}
    several = Schema.of((numpy.zeros((1, 2)), numpy.zeros((1, 1))))
    assert len(several.to_inputs(several.read({"inputs": {"input_0": [[1, 2]], "input_1": [[3]]}}))) == 2
    assert [each.shape for each in NAMED.example(2)] == [(2, 7), (2, 7)]  # as long as the program's own
    assert NAMED.describe()["inputs"][0] == {"name": "input_ids", "dtype": "int64", "shape": ["rows", None]}


@pytest.mark.parametrize(
    ("schema", "body", "message"),
    [
        (ONE, [], 'must be an object with "inputs"'),
        (ONE, {"inputs": [[1, 2], [3]]}, "rows of unlike lengths"),
        (ONE, {"inputs": "text"}, "must be numbers"),
        (ONE, {"inputs": [[1, 2, 3]]}, r"must have the shape \[rows, 2, 3\]; got \[1, 3\]"),
        (ONE, {"inputs": []}, "must have the shape"),
        (BYTES, {"inputs": []}, "must have the shape"),
        (BYTES, {"inputs": [[0, 256]]}, "from 0 to 255 and without a point; got 0 to 256"),
        (BYTES, {"inputs": [[-1, 0]]}, "got -1 to 0"),
        (BYTES, {"inputs": [[1.0, 0]]}, "got 0.0 to 1.0, as float64"),
        (BYTES, {"inputs": [[2**64, 0]]}, "no number of 64 bits"),
        (NAMED, {"inputs": [[1]]}, "must be an object with the names"),
        (NAMED, {"inputs": {"input_ids": [[1.5]], "mask": [[1]]}}, "must be whole numbers"),
        (NAMED, {"inputs": {"input_ids": [[1], [2]], "mask": [[1]]}}, "same number of rows"),
        (NAMED, {"inputs": {"input_ids": [[1]]}}, "got \\['input_ids'\\]"),
        (NAMED, {"inputs": {"input_ids": [[None]], "mask": [[1]]}}, "must be numbers"),
    ],
)
def test_what_does_not_fit_is_refused(schema, body, message):
    with pytest.raises(BadRequest, match=message):
        schema.read(body)
