"""Keeps secrets out of events, logs, tables and pages that get sent around: parameters and variables of the environment
that look like one, their values elsewhere in text in whatever encoding, and what shows to be a secret by its own form.

Knows names, values and texts only. A secret of no known form that a program prints on its own, or in pieces, is not
recognised.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.vocabulary.records import to_json
from dovetail.vocabulary.secret_forms import MASK, encodings, mask_forms, secrets_in
from dovetail.vocabulary.user_text import MOST_CHARACTERS, shorten

if TYPE_CHECKING:
    from dovetail.vocabulary.decisions import Plan

# Whatever has a word with one of these in it is a secret.
_ALWAYS = re.compile(r"passw(?:or)?d|passphrase|passcode|secret|credential|^pwd$")
# A name that ends in one of these words is one, unless its value is a number: num_key_value_heads=8 and max_tokens=512
# are models' sizes.
_LAST = re.compile(
    r"(?:.*tokens?|keys?|(?:api|access|account|app|auth|encryption|hf|license|master|private|service|signing|ssh|wandb)"
    r"keys?|o?auth|authorization|bearer|cookies?|creds?|dsn|jwt|mnemonic|otp|pass|pw|webhooks?)$"
)
# What may stand behind that word; a connection's address is one even without such a word.
_BEHIND = {"b", "base", "data", "default", "dev", "env", "header", "headers", "hex", "id", "json", "live", "new", "old"}
_BEHIND |= {"pem", "prod", "raw", "str", "string", "text", "uri", "url", "val", "value"}
_CONNECTIONS = {"amqp", "broker", "conn", "connection", "database", "db", "mongo", "mongodb", "mssql", "mysql"}
_CONNECTIONS |= {"postgres", "postgresql", "rabbitmq", "redis", "sentry"}
# What stands before the word where it is an ordinary one: pad_token="<pad>", sort_key="length", forward_pass="checked".
_ORDINARY = {"additional", "audio", "backward", "begin", "bos", "class", "cls", "eos", "extra", "end", "first"}
_ORDINARY |= {"forward", "image", "mask", "max", "min", "n", "num", "pad", "padding", "per", "prompt", "second", "sep"}
_ORDINARY |= {"special", "start", "stop", "total", "unk", "video"}
_ORDINARY_KEYS = {"attention", "batch", "cache", "column", "config", "data", "feature", "foreign", "group", "index"}
_ORDINARY_KEYS |= {"input", "label", "loss", "metric", "monitor", "output", "partition", "primary", "public", "query"}
_ORDINARY_KEYS |= {"sort", "state", "target", "text"}
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Shorter values would blank out parts of ordinary words. The environment is nobody's choice of names, so more is asked.
_SHORTEST, _SHORTEST_OF_ENVIRONMENT = 4, 8
_LONGEST_PLAIN = 12
_FOLDERS = ("PWD", "OLDPWD")
# What is worth remembering, of names and words that come again and again.
_MOST_NAMES, _LONGEST_WORD = 10_000, 200
_NUMBERS = frozenset({int, float, bool, type(None)})


def is_secret(name: str, value: Any) -> bool:
    """Whether a parameter of that name with that value should not be shown.

    >>> is_secret("api_key", "hf_123"), is_secret("max_tokens", 512), is_secret("dbPassword", 1234)
    (True, False, True)
    """
    kind = _kind(name)
    return kind == "always" or (kind != "ordinary" and not _is_plain(value, several=kind == "several"))


@functools.lru_cache(maxsize=_MOST_NAMES)
def _kind(name: str) -> str:
    """Whether a parameter of that name is a secret: `always`, unless its value is a number (`text`), unless its values
    are numbers or words (`several`), or never (`ordinary`)."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if any(_ALWAYS.search(word) for word in words):
        return "always"
    behind = 0
    while words and words[-1] in _BEHIND:
        behind += words.pop() in ("uri", "url", "str", "string")
    if not words or not (_LAST.match(words[-1]) or (behind and words[-1] in _CONNECTIONS)):
        return "ordinary"
    before, last = words[-2] if len(words) > 1 else "", words[-1]
    if before in _ORDINARY or (last in ("key", "keys") and before in _ORDINARY_KEYS):
        return "ordinary"
    return "several" if not before and last in ("tokens", "keys", "key") else "text"


def _is_plain(value: Any, *, several: bool) -> bool:
    if isinstance(value, Mapping | list | tuple):
        items = value.values() if isinstance(value, Mapping) else value
        return all(_is_plain(item, several=several) for item in items)
    if several and isinstance(value, str):  # key="accuracy", keys=["image", "label"], tokens=["<pad>"], tokens="512"
        is_word = value.isalpha() and value.islower() and len(value) <= _LONGEST_PLAIN
        return is_word or value.isdecimal() or value.startswith(("<", "["))
    return value is None or isinstance(value, int | float)


def masked(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as plain data, secrets replaced, at any depth.

    >>> masked({"width": 128, "hub": {"token": "hf_123"}})
    {'width': 128, 'hub': {'token': '***'}}
    """
    return Redactor([parameters]).parameters(parameters)


def show_value(name: str, value: Any, text: str) -> str:
    """What stands for a parameter in the name of its task: this text of its value, secrets masked.

    >>> show_value("rate", 0.1, "0.1"), show_value("pwd", "a", "a")
    ('0.1', '***')
    """
    if is_secret(name, value):
        return MASK
    return text if isinstance(value, int | float) else Redactor([{name: value}])(text)


def secrets_of(parameters: Mapping[str, Any]) -> set[str]:
    """The secret values among parameters, and what in the others has the form of one.

    >>> secrets_of({"width": 128, "token": "hf_123"})
    {'hf_123'}
    """
    return {secret for secret in _secrets(parameters) if len(secret) >= _SHORTEST}


def secrets_of_environment(variables: Mapping[str, str]) -> set[str]:
    """The secret values among a process's variables; numbers and words such as `true` are none.

    >>> secrets_of_environment({"HF_TOKEN": "hf_12345", "MAX_TOKENS": "65536000", "HOME": "/home/somebody"})
    {'hf_12345'}
    """
    found = _secrets({name: value for name, value in variables.items() if name not in _FOLDERS})
    return {value for value in found if len(value) >= _SHORTEST_OF_ENVIRONMENT and not value.isdecimal()}


class Redactor:
    """Masks in any text the secret values of all these parameters and variables, in every encoding, and whatever has
    the form of a secret.

    >>> redact = Redactor([{"pwd": "hunter22"}])
    >>> redact("task-hunter22 failed"), redact("aHVudGVyMjI="), redact("ghp_0123456789abcdef")
    ('task-*** failed', '***=', '***')
    """

    def __init__(
        self, parameters: Iterable[Mapping[str, Any]] = (), *, variables: Mapping[str, str] | None = None
    ) -> None:
        self._secrets: set[str] = set()
        self._written: list[str] = []
        self._names: dict[str, str] = {}
        self.learn(parameters, variables=variables)

    def learn(
        self, parameters: Iterable[Mapping[str, Any]] = (), *, variables: Mapping[str, str] | None = None
    ) -> None:
        """Mask the secrets among these as well from now on."""
        found = set[str]().union(*map(secrets_of, parameters), secrets_of_environment(variables or {})) - self._secrets
        if found:
            self._secrets |= found
            # Longest first, so that a secret that contains another is masked whole.
            written = set(self._written).union(*map(encodings, found))
            self._written = sorted(written, key=len, reverse=True)
            self._names.clear()

    def __call__(self, text: str) -> str:
        if len(text) < _SHORTEST:  # as are the ends of lines, half of all that programs print
            return text
        for secret in self._written:
            if secret in text:
                text = text.replace(secret, MASK)
        return mask_forms(text)

    def excerpt(self, text: str, *, most: int = MOST_CHARACTERS) -> str:
        """As much of a text as is kept, secrets masked. Of one of megabytes the middle is left out first; what is left
        is masked before it is cut to its size, so that no half of a secret stands at an edge."""
        return shorten(self(shorten(text, most=50 * most)), most=most)

    def name(self, text: str) -> str:
        """The same of a short text that comes again and again, such as the name of a metric."""
        found = self._names.get(text)
        if found is None:
            found = self(text)
            if len(text) <= _LONGEST_WORD:
                if len(self._names) >= _MOST_NAMES:
                    self._names.clear()
                self._names[text] = found
        return found

    def parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters as plain data, secrets masked, at any depth."""
        return {
            self.name(name): MASK if is_secret(name, value) else self._value(value) for name, value in given.items()
        }

    def plan(self, given: "Plan") -> "Plan":
        """A plan with secrets masked in what it says."""
        return dataclasses.replace(
            given,
            explanation=tuple(self(line) for line in given.explanation),
            rejections=tuple(dataclasses.replace(one, reason=self(one.reason)) for one in given.rejections),
        )

    def record(self, given: Any) -> Any:
        """Plain data of ours with secrets masked in all its words; of its names only those under `parameters` are the
        user's own, and judged as such."""
        if isinstance(given, Mapping):
            return {
                self.name(key): self.parameters(value)
                if key == "parameters" and isinstance(value, Mapping)
                else self.record(value)
                for key, value in given.items()
            }
        if isinstance(given, list | tuple):
            return [self.record(item) for item in given]
        return self.name(given) if isinstance(given, str) else given

    def _value(self, value: Any) -> Any:
        if value.__class__ in _NUMBERS:  # told at a glance, which a mapping is not
            return to_json(value)
        if isinstance(value, Mapping):
            return self.parameters(value)
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        return self.name(value) if isinstance(value, str) else to_json(value)


def _secrets(value: Any, *, secret: bool = False) -> Iterable[str]:
    if value.__class__ in _NUMBERS and not secret:
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, secret=secret or is_secret(name, item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, secret=secret)
    elif secret and value is not None and not isinstance(value, bool):
        yield str(value)
    if isinstance(value, str):
        yield from secrets_in(value) if len(value) > _LONGEST_WORD else _secrets_in_word(value)


@functools.lru_cache(maxsize=_MOST_NAMES)
def _secrets_in_word(value: str) -> tuple[str, ...]:
    """The same of a value that comes again and again, as those of a sweep's parameters do."""
    return tuple(secrets_in(value))
