"""Escaping of text from untrusted sources for logs and error messages.

Control characters, line ends, terminal escape sequences and bidirectional marks are escaped, so that a name, client id
or message cannot forge or hide a log line, nor control a terminal.
"""

from __future__ import annotations

from typing import Final

MESSAGE_CHARS_MAX: Final = 4_000
"""Maximum number of characters of an error message before escaping; log lines may be longer."""


def printable(text: str, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """Return a text, cut off after `chars_max` characters, with unprintable characters escaped."""
    if len(text) > chars_max:
        text = text[:chars_max] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii") if char > "\x7f" else repr(char)[1:-1]
