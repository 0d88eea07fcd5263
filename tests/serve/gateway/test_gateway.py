"""A real `openai` client talks to a real gateway in front of real servers, well behaved and not."""

import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import openai
import pyarrow
import pytest
from pyarrow import parquet

from dovetail.serve.routing import OutcomeTable
from tests.serve.routing.outcomes import WORDS, rows_of

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
SECRET = "hunter22-in-the-address"
NAMES = ("good", "slow", "hang", "garbage", "empty", "failing", "flaky", "strict", "midway", "locked", "unsure")


@pytest.fixture(scope="module")
def upstream():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(HERE / "upstreams.py"), str(port)])
    address = f"http://127.0.0.1:{port}"
    for _ in range(200):
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{address}/counts")
            break
        time.sleep(0.1)
    yield address
    process.kill()  # asked to end, it would wait for what hangs
    process.wait()


def models_file(folder, upstream, *names, **more):
    """Each model at the upstream, the later the dearer."""
    lines = []
    for place, name in enumerate(names):
        own = {"url": f"{upstream}/v1?key={SECRET}", "price_in": 1.0 * 10**place, "price_out": 1.0 * 10**place}
        own |= {"timeout": "1s"} | more.get(name, {})
        lines += [f"[models.{name}]", *(f"{key} = {value!r}" for key, value in own.items())]
    path = folder / "models.toml"
    path.write_text("\n".join(lines))
    return path


class Gateway:
    def __init__(self, *words, environment=None):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail", "route", "--port", "0", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | (environment or {}),
        )
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if found := re.match(r"(http://\S+)/v1$", line):
                self.address = found[1]
                return
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.end()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(ValueError):
            self.said += self.process.communicate(timeout=300)[0] or ""
        return self.process.returncode

    def client(self, **how):
        return openai.OpenAI(base_url=f"{self.address}/v1", **{"api_key": "none", "max_retries": 0} | how)

    def post(self, path="/v1/chat/completions", **how):
        return httpx.post(self.address + path, timeout=30, **how)


def ask(client, model="auto", text="hello", **how):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **how)


@pytest.fixture(scope="module")
def gateway(upstream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gateway")
    locked = {"key_variable": "LOCKED_KEY"}
    path = models_file(folder, upstream, *NAMES, locked=locked)
    with Gateway(path, environment={"LOCKED_KEY": "upstream-secret-key"}) as running:
        yield running
    assert SECRET not in running.said
    assert "upstream-secret-key" not in running.said


def test_a_client_is_answered_whole_and_in_parts(gateway):
    client = gateway.client()
    assert [each.id for each in client.models.list()][:2] == ["auto", "good"]
    assert ask(client).choices[0].message.content == "good says: hello"
    assert ask(client, "locked").choices[0].message.content == "locked says: hello"
    parts = [part.choices[0].delta.content for part in ask(client, "auto", "one two", stream=True)]
    assert "".join(parts) == "good says: one two "
    assert len(parts) == 4
    assert client.completions.create(model="good", prompt="once").choices[0].text == "good says: once"
    words = [part.choices[0].text for part in client.completions.create(model="good", prompt="a b", stream=True)]
    assert "".join(words) == "good says: a b "


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("hang", openai.InternalServerError, "gave no answer within 1 s"),
        ("garbage", openai.InternalServerError, "answered what is not JSON"),
        ("empty", openai.InternalServerError, "answered without choices"),
        ("strict", openai.BadRequestError, "temperature must be 0"),
        ("none", openai.NotFoundError, "must be one of auto, good, .* got 'none'"),
    ],
)
def test_what_upstreams_do_wrong_is_an_error_of_the_clients_kind(gateway, model, error, message):
    with pytest.raises(error, match=message) as raised:
        ask(gateway.client(), model)
    assert SECRET not in str(raised.value)


def test_a_stream_that_is_cut_raises_in_the_client(gateway):
    parts = ask(gateway.client(), "midway", stream=True)
    assert next(parts).choices[0].delta.content == "midway "
    with pytest.raises(openai.APIError, match="'midway' closed midway"):
        next(parts)


def test_what_fails_once_is_tried_again(gateway):
    assert ask(gateway.client(), "flaky").choices[0].message.content == "flaky says: hello"


def test_who_keeps_failing_is_not_asked_for_a_while(gateway, upstream):
    client = gateway.client()
    for _ in range(3):
        with pytest.raises(openai.InternalServerError):
            ask(client, "failing")
    before = httpx.get(f"{upstream}/counts").json()["failing"]
    with pytest.raises(openai.InternalServerError) as raised:
        ask(client, "failing")
    assert raised.value.status_code == 503
    assert 1 <= int(raised.value.response.headers["retry-after"]) <= 10
    assert httpx.get(f"{upstream}/counts").json()["failing"] == before
    assert httpx.get(f"{gateway.address}/health").json()["models"]["failing"] == "failing"


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "must be JSON"),
        (b"[" * 100_000, 400, "must be JSON"),
        (b"[]", 400, "an object with a 'model'"),
        (b'{"model": "good"}', 400, "'messages' must be a list"),
        (b'{"model": "good", "messages": [7]}', 400, "'messages' must be a list"),
        (b'{"model": "good", "messages": [{"role": "user", "content": 7}]}', 400, "must be text"),
        (b'{"model": "good", "messages": [{}], "stream": "yes"}', 400, "true or false"),
        (b" " * (33 << 20), 413, "bytes at most"),
    ],
)
def test_bodies_that_cannot_be_are_refused(gateway, body, status, message):
    found = gateway.post(content=body)
    assert found.status_code == status
    assert message in found.json()["error"]["message"]


def test_metrics_count_requests_calls_and_money(gateway):
    ask(gateway.client(), "good")
    text = httpx.get(f"{gateway.address}/metrics").text
    assert 'dovetail_route_requests_total{status="200"}' in text
    assert 'dovetail_route_calls_total{end="answered",model="good"}' in text
    assert float(re.search(r'dovetail_route_spend_total{model="good"} (\S+)', text)[1]) > 0


def test_too_much_at_once_is_429_and_passes(upstream, tmp_path):
    path = models_file(tmp_path, upstream, "slow", slow={"at_once": 2})
    with Gateway(path) as gateway, concurrent.futures.ThreadPoolExecutor(6) as pool:
        payload = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        found = list(pool.map(lambda _: gateway.post(json=payload), range(6)))
        assert sorted({each.status_code for each in found}) == [200, 429]
        assert all(int(each.headers["retry-after"]) >= 1 for each in found if each.status_code == 429)
        assert gateway.post(json=payload).status_code == 200


def test_another_answers_where_the_first_choice_fails(upstream, tmp_path):
    path = models_file(tmp_path, upstream, "garbage", "good")
    with Gateway(path) as gateway:
        client = gateway.client()
        found = client.chat.completions.with_raw_response.create(
            model="auto", messages=[{"role": "user", "content": "hello"}]
        )
        assert found.headers["x-dovetail-model"] == "good"
        assert "".join(part.choices[0].delta.content for part in ask(client, stream=True)) == "good says: hello "


def test_a_token_is_asked_for_and_what_was_taken_is_answered_at_the_end(upstream, tmp_path):
    token = tmp_path / "token"
    token.write_text("a-token-of-some-length\n")
    path = models_file(tmp_path, upstream, "slow", slow={"timeout": "10s"})
    with Gateway(path, "--token-file", token) as gateway:
        with pytest.raises(openai.AuthenticationError, match="Authorization: Bearer TOKEN"):
            ask(gateway.client())
        client = gateway.client(api_key="a-token-of-some-length")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, client)
            time.sleep(0.25)
            assert gateway.end() == 0
            assert answer.result().choices[0].message.content == "slow says: hello"


def test_outcomes_are_recorded_judged_and_kept_within_a_budget(upstream, tmp_path):
    # A call takes 2,000 tokens: 0.002 with `good`, 0.02 with `unsure`; 0.011 pays for about half of each.
    path, record = models_file(tmp_path, upstream, "good", "unsure"), tmp_path / "log.parquet"
    with Gateway(path, "--record", record, "--budget", "11/1k") as gateway:
        client = gateway.client()
        given = [ask(client, text=f"question {number}") for number in range(40)]
        one = gateway.post("/v1/feedback", json={"id": given[0].id, "quality": 1.0})
        assert one.status_code == 200
        assert gateway.post("/v1/feedback", json={"id": "other", "quality": 1.0}).status_code == 404
        assert gateway.post("/v1/feedback", json={"id": given[0].id, "quality": 7}).status_code == 400
        assert gateway.end() == 0
    table = OutcomeTable.read(record)
    assert sorted(table.queries) == sorted(f"question {number}" for number in range(40))
    assert set(table.models) == {"good", "unsure"}
    (spent,) = {round(float(sum(price[price == price].sum() for price in table.price)), 6)}
    assert spent <= 40 * 0.011 + 1e-9
    assert spent >= 40 * 0.011 * 0.8
    assert (table.quality == 1.0).sum() == 1


def test_what_was_learned_decides_and_an_answer_that_looks_bad_is_not_the_last(upstream, tmp_path):
    rows = rows_of(120, answers=True)
    names = {"small": "unsure", "large": "good"}
    parquet.write_table(
        pyarrow.Table.from_pylist([row | {"model": names[row["model"]]} for row in rows]), tmp_path / "outcomes"
    )
    path = models_file(tmp_path, upstream, "unsure", "good")
    with Gateway(path, "--outcomes", tmp_path / "outcomes", "--money", "0.5") as gateway:
        assert "learned from 120 queries; the best single model is good" in gateway.said
        found = ask(gateway.client(), text=f"{WORDS['hard']} 7")
        # The small model says that it does not know, or is not asked: either way the large one's answer comes.
        assert found.choices[0].message.content.startswith("good says")
        easy = list(ask(gateway.client(), text=f"{WORDS['easy']} 7", stream=True))
        assert easy[0].model == "unsure"


def test_of_several_samples_the_majority_is_given_and_all_are_noted(upstream, tmp_path):
    models = models_file(tmp_path, upstream, "good", good={"samples": 3})
    record = tmp_path / "log.parquet"
    with Gateway(models, "--record", record) as gateway:
        body = {"model": "auto", "messages": [{"role": "user", "content": "which?"}]}
        said = httpx.post(gateway.address + "/v1/chat/completions", json=body, timeout=30).json()
        assert [each["message"]["content"] for each in said["choices"]] == ["True good says: which?"]
        own = httpx.post(gateway.address + "/v1/chat/completions", json={**body, "n": 2}, timeout=30).json()
        assert len(own["choices"]) == 2
    noted = parquet.read_table(record).to_pylist()
    assert noted[0]["answer"].split("\x1e") == [f"{each} good says: which?" for each in (False, True, True)]
