"""Text that somebody else has chosen, made fit for a line of a log or an error's message.

Control characters, line ends, escape sequences of terminals and marks that turn the direction of writing are written
as escapes, so that no name, client id or message forges a line, hides one, or tells a terminal what to do.
"""

from __future__ import annotations

from typing import Final

MESSAGE_CHARS_MAX: Final = 4_000
"""Of an error's message; a log's line may be longer."""


def printable(text: str, chars_max: int = MESSAGE_CHARS_MAX) -> str:
    """Return a text with everything escaped that is not printable, and cut where it is longer than `chars_max`."""
    if len(text) > chars_max:
        text = text[:chars_max] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii") if char > "\x7f" else repr(char)[1:-1]
