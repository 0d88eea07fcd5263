"""Secrets do not reach pages, whatever they hide in; models' sizes do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.vocabulary.redact import MASK, is_secret, masked, redactor


@pytest.mark.parametrize(
    "name", ["password", "api_key", "apiKey", "HF_TOKEN", "wandb-key", "client_secret", "authtoken", "AWS_KEY_ID"]
)
def test_names_that_look_like_secrets(name: str):
    assert is_secret(name, "abc123")


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_key_value_heads", 8), ("max_tokens", 512), ("tokenizer", "gpt2"), ("token_dropout", 0.1), ("width", 3)],
)
def test_names_that_do_not(name: str, value: object):
    assert not is_secret(name, value)


def test_numbers_are_secret_under_a_plain_name_for_one():
    assert is_secret("password", 1234)
    assert is_secret("client_secret", 7)


def test_nested_secrets_are_masked_and_the_rest_kept():
    given = {"hub": {"token": "hf_abc", "user": "x"}, "layers": [1, 2], "servers": [{"password": "p"}]}
    assert masked(given) == {"hub": {"token": MASK, "user": "x"}, "layers": [1, 2], "servers": [{"password": MASK}]}


def test_values_are_masked_in_text_whole():
    redact = redactor([{"token": "abcd"}, {"token": "abcdef", "width": 1024}])
    assert redact("x-abcdef-abcd-1024") == "x-***-***-1024"


def test_short_values_do_not_blank_ordinary_words():
    assert redactor([{"password": "a"}])("a banana") == "a banana"


@given(st.text(min_size=4, alphabet=st.characters(exclude_characters="*")), st.text(), st.text())
def test_no_secret_survives(secret: str, before: str, after: str):
    assert secret not in redactor([{"secret": [secret]}])(before + secret + after)
