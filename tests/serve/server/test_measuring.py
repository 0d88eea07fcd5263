import asyncio
import concurrent.futures

import numpy
import pytest

from dovetail.serve.server.measuring import measure_server
from dovetail.serve.server.schema import Schema
from dovetail.vocabulary import DovetailError

pytestmark = pytest.mark.process


class Doubling:
    """What a replica has loaded."""

    stages = None

    def answer(self, arrays):
        return 2 * arrays[0]


def test_requests_and_calls_are_measured_through_a_server():
    schema = Schema.of({"left": numpy.zeros((1, 3), dtype="float32")})
    found = measure_server(Doubling, schema, rows=(1, 16), threads=2, cores=4)
    assert [rows for rows, _ in found.curve.points] == [1, 16]
    # Sixteen requests take more of the server's process than one, and a millisecond is more than reading one takes.
    assert 1e-6 < found.front.request_seconds < 0.01
    assert found.front.cores == 2.5


def test_where_a_loop_runs_already_as_in_a_notebook():
    async def cell():
        return measure_server(Doubling, Schema.of({"left": numpy.zeros((1, 3), dtype="float32")}), rows=(1,))

    with concurrent.futures.ThreadPoolExecutor(1) as thread:  # in this one a browser's loop may run
        assert [rows for rows, _ in thread.submit(asyncio.run, cell()).result().curve.points] == [1]


class Failing(Doubling):
    def answer(self, arrays):
        raise ValueError("no zeros, please")


def test_a_model_that_does_not_answer_is_not_measured():
    schema = Schema.of({"left": numpy.zeros((1, 3), dtype="float32")})
    with pytest.raises(DovetailError, match=r"must answer the first row of its batches; this one: .*no zeros, please"):
        measure_server(Failing, schema, rows=(1,))
