"""What a gateway's app does with requests and answers that are out of the ordinary, without a server."""

import asyncio
import json

import httpx
import pytest

from dovetail.serve.gateway.gateway_app import GatewayApp
from dovetail.serve.gateway.models_file import UpstreamModel
from dovetail.serve.gateway.outcome_log import OutcomeLog
from dovetail.serve.gateway.routing_policy import RoutingPolicy

MODEL = UpstreamModel(name="one", url="http://127.0.0.1:9/v1", model="one", price_in=1e6, price_out=1e6)


class Gateway:
    """An app whose one model answers with `content`."""

    def __init__(self, folder, content):
        client = httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200, content=content)))
        self.policy, self.log = RoutingPolicy([MODEL]), OutcomeLog(folder)
        self.app = GatewayApp([MODEL], self.policy, client, log=self.log).app

    def post(self, content):
        async def ask():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://it") as client:
                return await client.post("/v1/chat/completions", content=content)

        return asyncio.run(ask())


def asking(text='"hello"', **more):
    fields = json.dumps({"model": "auto", **more})[:-1]
    return f'{fields}, "messages": [{{"role": "user", "content": {text}}}]}}'


@pytest.mark.parametrize(
    "body",
    [
        asking('"half \\ud800 of a pair"'),
        asking().replace("{", '{"temperature": NaN, ', 1),
        asking().replace("{", '{"temperature": 1e999, ', 1),
        asking().encode().replace(b"hello", b"\xed\xa0\x80"),
    ],
)
def test_a_body_that_cannot_be_sent_on_is_a_400(tmp_path, body):
    found = Gateway(tmp_path, b"").post(body)
    assert found.status_code == 400
    assert "the body must be JSON; found: " in found.json()["error"]["message"]


def test_an_answer_comes_as_it_is_whatever_it_holds(tmp_path):
    gateway = Gateway(tmp_path, b'{"id": "1", "choices": [{"logprob": -Infinity, "text": "half \\ud83d"}]}')
    found = gateway.post(asking())
    assert found.status_code == 200
    assert json.loads(found.content)["choices"] == [{"logprob": float("-inf"), "text": "half \ud83d"}]
    gateway.log.write()
