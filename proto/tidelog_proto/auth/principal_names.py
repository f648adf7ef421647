"""Validation of the names of principals and roles: only one spelling of a name is accepted.

Names are compared character by character, but in a list, `admin` and `admin ` look the same, and so does a spelling
with a Cyrillic letter. Such names are refused.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from tidelog_proto.limits import PRINCIPAL_CHARS_MAX

EVERYBODY: Final = "*"
ROLE_PREFIX: Final = "role:"

_MIXABLE_SCRIPTS: Final = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL"})
"""Scripts that one name may mix, as in Chinese, Japanese and Korean (UTS #39, highly restrictive)."""
_SHARED_LETTER_WORDS: Final = frozenset({"MODIFIER", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "VERTICAL"})
"""First words of the Unicode names of letters that belong to more than one script."""


def principal_name_fault(name: str) -> str | None:
    """Return why a name is invalid for a principal or role; None if it is valid.

    The message escapes all characters of the name except printable ASCII, so that look-alike characters are visible.
    """
    if not 1 <= len(name) <= PRINCIPAL_CHARS_MAX or not name.isprintable():
        chars = f"1 to {PRINCIPAL_CHARS_MAX} printable characters"
        return f"the name of a principal or role must have {chars}, got {name[:80]!a}"
    if name == EVERYBODY or name.startswith(ROLE_PREFIX):
        return f"{name!a} is reserved; choose another name for the principal or role"
    if name != name.strip():
        return f"the name {name!a} begins or ends with a space: give {name.strip()!r}"
    if (normal := unicodedata.normalize("NFKC", name)) != name:
        return f"the name {name!a} is not in Unicode's normal form (NFKC): give {normal!a}"
    if "\N{REPLACEMENT CHARACTER}" in name:
        return f"the name {name!a} has a character that could not be decoded (U+FFFD): give the name in UTF-8"
    scripts = _scripts_of(name)
    if len(scripts) > 1 and not scripts <= _MIXABLE_SCRIPTS:
        mixed = " and ".join(sorted(script.capitalize() for script in scripts))
        return f"the name {name!a} mixes letters of {mixed}, which look alike: give a name with letters of one script"
    return None


def _scripts_of(name: str) -> set[str]:
    """Return the scripts of a name's letters, by the first word of their names in Unicode."""
    if name.isascii():
        return set()
    words = {unicodedata.name(char, "").partition(" ")[0] for char in name if char.isalpha()}
    return words - _SHARED_LETTER_WORDS
