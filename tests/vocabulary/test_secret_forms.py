"""What shows to be a secret by its own form, and what only looks a little like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.vocabulary.secret_forms import encodings, mask_forms, secrets_in

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSj\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:hunter2@db.example.com/runs", "postgres://me:***@db.example.com/runs"),
        ("at redis://:p@ss@cache:6379, twice", "at redis://:***@cache:6379, twice"),
        ("admin:hunter2@db.example.com", "admin:***@db.example.com"),
        ("root:hunter2@localhost refused", "root:***@localhost refused"),
        ("me:hunter2@db:5432/runs", "me:***@db:5432/runs"),
        (f"key:\n{KEY}\nloss 0.5", "key:\n***\nloss 0.5"),
        (repr(KEY), "'***'"),
        ("sk-proj-0123456789abcdefABCDEF", "***"),
        ("sk-ant-api03-0123456789abcdefABCDEF", "***"),
        ("with ghp_0123456789abcdefABCDEF0123456789abcd", "with ***"),
        ("AKIAIOSFODNN7EXAMPLE", "***"),
        ("xoxb-123456789012-abcdefghijkl", "***"),
        ("hf_abcdefghijklmnopqrstuvwxyz", "***"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N", "***"),
        ("https://hooks.slack.com/services/T000/B000/XXXXXXXX", "https://hooks.slack.com/services/***"),
        ("{'Authorization': 'Basic dXNlcjpwYXNz'}", "{'Authorization': 'Basic ***'}"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ('connect(password="hunter2")', 'connect(password="***")'),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
        ('{"api_key": "0123abcd"}', '{"api_key": "***"}'),
        ("GET /?user=me&token=abcdef&n=1", "GET /?user=me&token=***&n=1"),
    ],
)
def test_what_has_the_form_of_a_secret_is_masked(text: str, shown: str):
    assert mask_forms(text) == shown
    assert mask_forms(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "task-resnet50-batch-normalised-0123456789",
        "risk-0123456789abcdefABCDEF",
        "git@github.com:somebody/project.git",
        "see https://example.com/docs?page=2#top",
        "write to mailto:somebody@example.com",
        "pytorch:latest@sha256:0123456789abcdef",
        "accuracy@5:0.75, top:1@5",
        "KeyError: 'token'",
        "1,024 tokens/s, max_tokens=512, tokens = 512, key_size=64",
        "password must not be empty; password: required",
        "the secret of training: patience",
        "if password is None: password = None",
        "Authorization failed",
        "basic training, bearer bonds",
        "-----BEGIN EPOCH 3-----\nloss 0.5",
        'File "/home/me/train.py", line 3, in build',
        "node n0:0@resident: 0.5 s",
        "author=ada, authority=none, passes=3, tokenizer=gpt2",
        "pwd=/home/somebody/project",
    ],
)
def test_ordinary_text_is_left_alone(text: str):
    assert mask_forms(text) == text


def test_a_key_that_was_cut_off_is_masked_as_far_as_it_reaches():
    assert mask_forms(KEY[:60] + "\n... loss: 0.5") == "***... loss: 0.5"


def test_the_secret_parts_of_a_value_are_found():
    assert list(secrets_in("postgres://me:hunter22@db/runs")) == ["hunter22"]
    assert list(secrets_in("a plain dataset of 512 tokens")) == []


@given(st.text(min_size=4, max_size=100))
def test_no_encoding_is_shorter_than_the_secret_or_a_piece_of_one(secret: str):
    found = encodings(secret)
    assert secret in found
    assert all(len(each) >= min(len(secret), 8) for each in found)


@pytest.mark.parametrize(
    "piece", ["a", "a:", "://", "@", "sk-", "eyJ.", "password=", "-----BEGIN RSA KEY-----", "?key=", "eyJ-"]
)
def test_long_texts_end(piece: str):
    """A pattern that tries again from every place would take hours for this."""
    mask_forms(piece * (400_000 // len(piece)) + "@")
