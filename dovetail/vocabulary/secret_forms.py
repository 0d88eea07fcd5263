"""How secrets look: those that show by their own form, whatever they are called, and every way to write a known one.

Knows texts only. A form is looked for where its marker stands in the text, so that a line without any takes a few
microseconds; every pattern is bounded or anchored, so that a long text takes time in proportion to its length.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

MASK = "***"
# Pieces of a secret, and encodings that another text may begin or end, are recognised from this length on: shorter
# ones would blank out parts of ordinary words.
_SHORTEST_PIECE = 8

KEY_BEGINS = r"-----BEGIN [A-Z0-9 ]{0,40}(?:KEY|KEY BLOCK|CERTIFICATE|PGP MESSAGE)-----"
"""The first line of a key in PEM; other lines that begin so may be a program's headings."""
_HOST = (
    r"(?:localhost\b|\d{1,3}(?:\.\d{1,3}){3}|(?!sha\d)[A-Za-z][\w-]{0,62}(?:\.[A-Za-z][\w-]{0,62})+"
    r"|(?!sha\d)[A-Za-z][\w-]{0,62}(?=[:/]\w))"
)
_TOKENS = (
    r"sk-(?:[a-z]{2,10}\d{0,2}-){0,3}(?=\w{0,60}\d)\w{16,}[\w-]*|(?:sk|rk|pk)_(?:live|test)_\w{10,}|gh[pousr]_\w{10,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|xox[abeprs]-[\w-]{8,}|xapp-[\w-]{8,}"
    r"|hf_[A-Za-z0-9]{16,}|AIza[\w-]{30,}|ya29\.[\w-]{20,}|npm_[A-Za-z0-9]{30,}|pypi-[\w-]{30,}|nvapi-[\w-]{30,}"
    r"|gsk_[A-Za-z0-9]{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|dop_v1_\w{32,}|eyJ[\w-]{8,500}+\.[\w-]{8,}(?:\.[\w-]*)?"
)
_ASSIGNED = (
    r"password|passwd|passphrase|pwd|secret|(?:api|access|account|private|signing|encryption|master)[_-]?key"
    r"|(?:auth|access|refresh|session|bot)[_-]?token"
)


def _form(markers: str, pattern: str, flags: int = 0) -> tuple[tuple[str, ...], re.Pattern[str]]:
    return tuple(markers.split()), re.compile(pattern, flags)


# Of each form: what stands in every text that has it, one or the other, in small letters; and a pattern of two groups:
# what is kept, and the secret behind it.
_FORMS = (
    _form(  # where its last line was cut off, as far as it may reach
        "-----begin",
        rf"()({KEY_BEGINS}(?:(?:[^-]|-(?!----)){{0,20000}}+-----END [A-Z0-9 ]{{1,40}}-----|[\w+/=\s\\]{{0,20000}}))",
    ),
    _form("://", r"(://[^\s:/@'\"]{0,200}:)([^\s/'\"<>]{1,500})(?=@)"),
    _form("://", r"(://)([^\s:/@'\"]{20,500})(?=@)"),
    _form(
        "@",
        r"((?<![\w.+/-])(?!mailto:)[\w.+-]{1,64}+:)(?!\d*\.?\d{0,5}@)([^\s:@/'\",;()]{4,200}+)(?=@" + _HOST + ")",
    ),
    _form(
        "sk- _live_ _test_ ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- akia asia xox xapp- hf_ aiza ya29. npm_ pypi- "
        "nvapi- gsk_ sg. dop_v1_ eyj",
        rf"()(?<![A-Za-z0-9])({_TOKENS})",
    ),
    _form(
        "hooks.slack.com/ /api/webhooks/ webhook.office.com/",
        r"(hooks\.slack\.com/[a-z]+/|/api/webhooks/|webhook\.office\.com/)([^\s'\"<>]{8,500})",
    ),
    _form(
        "authorization",
        r"(authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:(?:basic|bearer|token|digest)\s{1,4})?+)"
        r"([^\s'\",;)}\]]{4,2000})",
        re.IGNORECASE,
    ),
    _form("bearer", r"(\bbearer\s{1,4})((?=[\w.~+/-]{0,500}[\d_.=])[\w.~+/=-]{8,2000})", re.IGNORECASE),
    _form(
        "passw passphrase pwd secret _key -key apikey accesskey accountkey privatekey _token -token authtoken "
        "accesstoken",
        rf"((?:{_ASSIGNED})s?\d{{0,3}}['\"]?\s{{0,4}}(?:=>|==?|:\s{{0,4}}(?=['\"]))\s{{0,4}}['\"]?)"
        r"(?!(?:None|True|False|null|true|false)\b|/)((?<=['\"])[^'\"\n]{4,500}|[^\s'\",;&(){}\[\]<>]{4,500})",
        re.IGNORECASE,
    ),
    _form(
        "token= key= sig= signature= credential= auth=",
        r"([?&](?:\w{1,20}[_-])?(?:token|key|sig|signature|credential|auth)=)([^\s&'\"#<>]{4,2000})",
        re.IGNORECASE,
    ),
)


def mask_forms(text: str) -> str:
    """The text with everything masked that has the form of a secret.

    >>> mask_forms("postgres://me:hunter2@db.example.com/runs took 12 s")
    'postgres://me:***@db.example.com/runs took 12 s'
    """
    lowered = text.lower()
    for markers, pattern in _FORMS:
        for marker in markers:  # no generator: this is done for every line that a program prints
            if marker in lowered:
                text = pattern.sub(rf"\1{MASK}", text)
                break
    return text


def secrets_in(text: str) -> Iterator[str]:
    """What in a text has the form of a secret; a password in an address also as it is without its escapes.

    >>> list(secrets_in("postgres://me:a%2Fhunter2@db.example.com/runs"))
    ['a%2Fhunter2', 'a/hunter2']
    """
    lowered = text.lower()
    for markers, pattern in _FORMS:
        if any(marker in lowered for marker in markers):
            for found in pattern.finditer(text):
                yield found[2]
                if "%" in found[2]:
                    yield unquote(found[2])


def encodings(secret: str) -> set[str]:
    """Every way in which a secret may stand in a text: as it is, each of its lines, as Python and JSON write it, quoted
    for a URL or a page, as hexadecimal and base64 digits, also amid a longer text that was encoded.

    >>> sorted(encodings("hunter/2"))[:3]
    ['68756E7465722F32', '68756e7465722f32', 'aHVudGVyLz']
    """
    found = {secret, secret.strip(), *_lines(secret)}
    for each in list(found):
        content = each.encode(errors="surrogatepass")
        quoted = quote(content, safe="")
        found |= {repr(each)[1:-1], ascii(each)[1:-1], repr(content)[2:-1], html.escape(each)}
        found |= {json.dumps(each)[1:-1], json.dumps(each, ensure_ascii=False)[1:-1]}
        found |= {quote(content), quoted, quote_plus(content), re.sub("%..", lambda digits: digits[0].lower(), quoted)}
        found |= {content.hex(), content.hex().upper(), *_base64(content)}
    return {each for each in found if len(each) >= min(len(secret), _SHORTEST_PIECE)}


def _lines(secret: str) -> Iterable[str]:
    """The lines of a secret that has several, for they may be printed one by one; not those that all such have."""
    parts = [line.strip() for line in secret.splitlines()]
    return [part for part in parts if len(part) >= _SHORTEST_PIECE and not part.startswith("-----")]


def _base64(content: bytes) -> Iterator[str]:
    """The digits that stand for these bytes in base64, whatever stands before and after them."""
    for before in range(3):
        digits = base64.b64encode(b"\0" * before + content).decode().rstrip("=")
        # The first and the last digit may hold bits of the neighbours; of the secret alone they are known.
        inner = digits[-(-before * 8 // 6) : len(content + b"\0" * before) * 8 // 6]
        for each in [inner] * (len(inner) >= _SHORTEST_PIECE) + [digits] * (before == 0):
            yield each
            yield each.replace("+", "-").replace("/", "_")
