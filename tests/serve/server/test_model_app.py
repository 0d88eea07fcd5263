"""What a model's app answers to requests that are out of the ordinary, without a server."""

import asyncio
from types import SimpleNamespace

import httpx
import numpy
import pytest

from dovetail.serve.server.model_app import ModelApp
from dovetail.serve.server.replica import Answered
from dovetail.serve.server.schema import Schema


class Queue:
    rows_waiting, is_closed = 0, False

    async def ask(self, arrays, *, within):
        return Answered(numpy.tile([0.0, 1.0, 0.0], (len(arrays[0]), 1)))


def feedback(labels):
    schema = Schema.of(numpy.zeros((1, 2), dtype="float32"))
    app = ModelApp(SimpleNamespace(ready=1, counts=None), Queue(), schema, within=1.0)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://it") as client:
            return await client.post("/feedback", json={"inputs": [[1.0, 2.0], [3.0, 4.0]], "labels": labels})

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 2], [1]], "labels must be whole numbers, the class of each of the 2 rows."),
        ([0.5, 1], "labels must be whole numbers, the class of each of the 2 rows."),
        ([1, 3], "labels must be classes, from 0 to 2; got 1 to 3."),
        ([-1, 2], "labels must be classes, from 0 to 2; got -1 to 2."),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    found = feedback(labels)
    assert (found.status_code, found.json()["error"]) == (400, message)


def test_labels_are_compared_with_answers():
    assert feedback([1, 2]).json() == {"rows": 2, "right": 0.5}
