"""Secrets do not get out, whatever they hide in; models' sizes and ordinary words do."""

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.vocabulary import Plan, Rejection
from dovetail.vocabulary.redact import Redactor, is_secret, masked, secrets_of_environment, show_value
from dovetail.vocabulary.secret_forms import MASK

SECRET_NAMES = [
    "password", "passwd", "pwd", "api_key", "token", "token2", "auth", "dsn", "database_url", "jwt", "webhook",
    "webhook_url", "client_secret", "auth_token", "authtoken", "credentials", "db_pass", "connection_string",
    "redis_url", "cookie", "aws_key_id", "private_key", "bearer", "oauth_token", "wandb_key", "basic_auth",
]  # fmt: skip
# With values that people give them.
ORDINARY = {
    "tokens": 512, "max_tokens": "512", "num_tokens": 3, "author": "ada", "authors": "ada, bob", "authority": "who",
    "tokenizer": "gpt2", "token_dropout": 0.1, "token_type": "bpe", "key_size": "large", "num_key_value_heads": 8,
    "passes": "two", "n_passes": 3, "bypass": "yes", "keyboard": "us", "monkey": "rhesus", "pad_token": "<pad>",
    "eos_token": "</s>", "sort_key": "length", "keys": ["image", "label"], "key": "accuracy",
    "special_tokens": ["<a>"], "width": 3,
    "dataset_url": "https://example.com/data.zip", "base_url": "https://example.com", "forward_pass": "checked",
    "compass": "north", "pin_memory": True, "use_auth": False, "rate": 0.1,
}  # fmt: skip


def _styles(name: str) -> list[str]:
    words = name.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    return [name, name.upper(), name.replace("_", "-"), camel, f"{name}2", f"my_{name}"]


@pytest.mark.parametrize("name", [style for name in SECRET_NAMES for style in _styles(name)])
def test_names_that_look_like_secrets(name: str):
    assert is_secret(name, "abc123defg")


@pytest.mark.parametrize("name", ["apiKey", "HF_TOKEN", "AWS_KEY_ID", "dbPassword", "PGPASSWORD", "DB_PWD"])
def test_names_as_others_write_them(name: str):
    assert is_secret(name, "abc123")


@pytest.mark.parametrize(("name", "value"), ORDINARY.items())
def test_names_that_do_not(name: str, value: object):
    assert not is_secret(name, value)
    assert not is_secret(name.upper(), value)
    assert masked({name: value}) == {name: value}


@given(st.sampled_from(sorted(ORDINARY)), st.integers() | st.floats(allow_nan=False) | st.booleans())
def test_numbers_under_ordinary_names_survive_everywhere(name: str, value: float):
    redact = Redactor([{name: value, "rate": 0.1}])
    text = f"task {name}={value} at step 512 took 0.1 s on n0:0 (resident)"
    assert redact(text) == text


@given(st.text(alphabet=st.characters(codec="ascii", categories=["Ll", "Lu", "Nd", "Zs"]), max_size=200))
def test_words_and_numbers_alone_are_no_secret(text: str):
    assert Redactor()(text) == text


def test_numbers_are_secret_under_a_plain_name_for_one():
    assert is_secret("password", 1234)
    assert is_secret("client_secret", 7)


def test_nested_secrets_are_masked_and_the_rest_kept():
    given = {"hub": {"token": "hf_abc", "user": "x"}, "layers": [1, 2], "servers": [{"password": "p"}]}
    assert masked(given) == {"hub": {"token": MASK, "user": "x"}, "layers": [1, 2], "servers": [{"password": MASK}]}


def test_a_secret_is_masked_under_whatever_other_name_it_stands():
    found = masked({"pwd": "hunter22", "note": "use hunter22", "url": "postgres://me:swordfish@db.example.com/runs"})
    assert found == {"pwd": MASK, "note": f"use {MASK}", "url": f"postgres://me:{MASK}@db.example.com/runs"}
    assert Redactor([{"url": "postgres://me:swordfish@db.example.com/runs"}])("with swordfish") == f"with {MASK}"


def test_values_are_masked_in_text_whole():
    redact = Redactor([{"token": "abcd"}, {"token": "abcdef", "width": 1024}])
    assert redact("x-abcdef-abcd-1024") == "x-***-***-1024"


def test_short_values_do_not_blank_ordinary_words():
    assert Redactor([{"password": "a"}])("a banana") == "a banana"


@given(st.text(min_size=4, alphabet=st.characters(exclude_characters="*")), st.text(), st.text())
def test_no_secret_survives(secret: str, before: str, after: str):
    assert secret not in Redactor([{"secret": [secret]}])(before + secret + after)


@given(
    st.sampled_from(SECRET_NAMES),
    st.text(min_size=8, max_size=60, alphabet=st.characters(codec="utf-8", exclude_characters="*")),
    st.text(max_size=5, alphabet=st.characters(codec="utf-8")),
    st.text(max_size=5, alphabet=st.characters(codec="utf-8")),
)
def test_no_encoding_of_a_secret_survives(name: str, secret: str, before: str, after: str):
    redact = Redactor([{name: secret}])
    content, whole = secret.encode(), before + secret + after
    written = [repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret, safe=""), content.hex(), repr(content)[2:-1]]
    written += [base64.b64encode(content).decode().rstrip("="), base64.urlsafe_b64encode(content).decode().rstrip("=")]
    for each in written:
        assert each not in redact(f"<{each}>")
    if len(content) >= 12:  # amid a longer text, but for the digits that it shares with its neighbours
        digits = base64.b64encode(whole.encode()).decode()
        assert redact(digits) != digits


def test_a_secret_that_no_encoding_can_write_is_masked():
    secret = "half a \ud83d pair"  # what a name on a disk in another encoding becomes
    assert Redactor([{"token": secret}])(f"with {secret} in it") == f"with {MASK} in it"


def test_a_secret_of_several_lines_is_masked_line_by_line():
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END PRIVATE KEY-----"
    redact = Redactor([{"key": key}])
    assert redact("    MIIEvQIBADANBgkqhkiG |") == "    *** |"
    assert "9w0BAQEFAASCBKcwggSj" not in redact(repr(key)) + redact(key) + redact(json.dumps({"k": key}))


def test_variables_of_the_environment():
    found = secrets_of_environment(
        {
            "DATABASE_URL": "postgres://me:swordfish@db/runs",
            "DB_PWD": "hunter2222",
            "PWD": "/home/somebody/project",
            "SSH_AUTH_SOCK": "/tmp/ssh-abcdefgh/agent",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": "/home/somebody/.ray/token",
        }
    )
    assert found == {"postgres://me:swordfish@db/runs", "swordfish", "hunter2222"}


def test_a_name_made_of_parameters_shows_no_secret():
    assert show_value("jwt", "a", "a") == MASK
    assert show_value("hub", {"token": "abcdef"}, "{'token': 'abcdef'}") == "{'token': '***'}"
    assert show_value("width", 128, "128") == "128"


def test_what_it_learns_later_counts_for_names_that_it_has_seen():
    redact = Redactor()
    assert redact.name("loss/hunter22") == "loss/hunter22"
    redact.learn([{"pwd": "hunter22"}])
    assert redact.name("loss/hunter22") == "loss/***"


def test_plans_and_records_are_masked_in_all_their_words():
    redact = Redactor([{"pwd": "hunter22"}])
    rejection = Rejection(families=("f",), technique="spill", kind="cpu", count=1, reason="no hunter22")
    found = redact.plan(Plan(explanation=("a hunter22",), rejections=(rejection,)))
    assert (found.explanation, found.rejections[0].reason) == (("a ***",), "no ***")
    record = {"task": "run-hunter22", "key": "f", "metrics": {"hunter22": 0.5}, "parameters": {"pwd": "x", "n": 1}}
    assert redact.record(record) == {
        "task": "run-***",
        "key": "f",
        "metrics": {"***": 0.5},
        "parameters": {"pwd": MASK, "n": 1},
    }
