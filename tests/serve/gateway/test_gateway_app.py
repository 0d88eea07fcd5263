"""What a gateway's app does with requests and answers that are out of the ordinary, without a server."""

import asyncio
import contextlib
import json

import httpx
import pytest
from starlette.requests import ClientDisconnect

from dovetail.serve.gateway.gateway_app import GatewayApp, HeldStream
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


PARTS = b'data: {"id": "1", "choices": [{"delta": {"content": "one two "}}]}\n\n'


async def cut_after_the_first_part(app, body):
    """Ask by ASGI, and go once something has come."""
    has_begun, requests = asyncio.Event(), [{"type": "http.request", "body": body.encode()}]

    async def receive():
        if requests:
            return requests.pop()
        await has_begun.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        if message.get("body"):
            has_begun.set()
            await asyncio.sleep(10)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "query_string": b"", "headers": []}
    await asyncio.wait_for(app(scope, receive, send), 5)
    await asyncio.sleep(0.05)  # generators that were left are closed by the loop


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_stream_that_ends_midway_is_paid_for_and_noted(tmp_path, is_cut):
    gateway = Gateway(tmp_path, PARTS)
    if is_cut:
        asyncio.run(cut_after_the_first_part(gateway.app, asking(stream=True)))
    else:
        assert "closed midway" in gateway.post(asking(stream=True)).text
    (noted,) = gateway.log._rows
    assert (noted["id"], noted["answer"]) == ("1", "one two ")
    assert noted["price"] > 8 / 4
    assert noted["seconds"] > 0
    assert gateway.policy._spent == noted["price"]


def test_a_stream_whose_client_has_gone_before_it_began_holds_nothing():
    let_go = []

    async def parts():
        yield "data: 1"

    async def send(message):
        raise OSError("the client has gone")

    async def scenario():
        held = contextlib.AsyncExitStack()
        held.callback(let_go.append, "the model's connection")
        with pytest.raises(ClientDisconnect):
            await HeldStream(parts(), held, headers={})({"type": "http", "asgi": {"spec_version": "2.4"}}, None, send)

    asyncio.run(scenario())
    assert let_go == ["the model's connection"]
