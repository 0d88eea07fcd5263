"""Texts that others wrote (names, errors, what a program prints), made fit to be kept and to be shown.

Kept, they are bounded: a program may raise an error of 20 MB. Shown in a terminal, they cannot steer it.
"""

import re

# As much of one text as is kept: a long traceback is a tenth of it.
MOST_CHARACTERS = 4000
# Room for the words that say how much is missing.
_NOTE = 60
# All that a terminal, or a reader's eye, would follow instead of show: C0 and C1 but for line feed and tab, what turns
# the direction of writing, invisible line ends, and halves of characters, which cannot be written at all.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Colours and weights of letters: the one escape sequence that moves nothing.
_COLOURS = re.compile("(\x1b\\[[0-9;:]{0,40}m)")


def shorten(text: str, *, most: int = MOST_CHARACTERS) -> str:
    """The text, or if it has more than `most` characters its head and its tail, and how many bytes are left out.

    >>> shorten("a" * 1000 + "b" * 1000, most=100)
    'aaaaaaaaaaaaa\\n[... 1,960 bytes left out ...]\\nbbbbbbbbbbbbbbbbbbbbbbbbbbb'
    """
    if len(text) <= most:
        return text
    kept = max(0, most - _NOTE)
    head, tail = kept // 3, len(text) - (kept - kept // 3)  # the end of a traceback says more than its beginning
    left_out = len(text[head:tail].encode(errors="surrogatepass"))
    return f"{text[:head]}\n[... {left_out:,} bytes left out ...]\n{text[tail:]}"


def escape_controls(text: str) -> str:
    """The text with control characters as Python would write them, so that a terminal shows them and obeys none.

    >>> print(escape_controls("\\x1b[2Jgone?"))
    \\x1b[2Jgone?
    """
    return _CONTROLS.sub(_escape, text) if _CONTROLS.search(text) else text


def escape_controls_but_colours(text: str) -> str:
    """The same for what a program has printed: its colours stay, and what it wrote over itself stands line by line.

    >>> print(escape_controls_but_colours("10%\\r20%\\r\\ndone"))
    10%
    20%
    done
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(part if n % 2 else escape_controls(part) for n, part in enumerate(_COLOURS.split(lines)))


def _escape(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
