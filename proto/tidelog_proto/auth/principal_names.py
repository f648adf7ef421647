"""Which names principals and roles may have: one spelling for a name, so that no other one looks like it.

A name is compared character by character. A reader sees no difference between `admin` and `admin ` in a list, nor
between `admin` and a spelling with a Cyrillic letter, so these are refused where a name is given or shown.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from tidelog_proto.limits import PRINCIPAL_CHARS_MAX

EVERYBODY: Final = "*"
ROLE_PREFIX: Final = "role:"

_WRITTEN_TOGETHER: Final = frozenset({"LATIN", "CJK", "HIRAGANA", "KATAKANA", "BOPOMOFO", "HANGUL"})
"""Scripts that one name may mix, as Chinese, Japanese and Korean do (UTS #39, highly restrictive)."""
_OF_SEVERAL_SCRIPTS: Final = frozenset({"MODIFIER", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "VERTICAL"})
"""First words of the Unicode names of letters that belong to more than one script."""


def principal_name_fault(name: str) -> str | None:
    """Return why no principal and no role may have a name; None if one may.

    The sentence shows the name with everything escaped that is not printable ASCII, so that the difference is visible.
    """
    if not 1 <= len(name) <= PRINCIPAL_CHARS_MAX or not name.isprintable():
        return f"the name of a principal or role is 1 to {PRINCIPAL_CHARS_MAX} printable characters"
    if name == EVERYBODY or name.startswith(ROLE_PREFIX):
        return f"{name!r} is no name of a principal or role"
    if name != name.strip():
        return f"the name {name!a} begins or ends with a space: give {name.strip()!r}"
    if (normal := unicodedata.normalize("NFKC", name)) != name:
        return f"the name {name!a} is not in Unicode's normal form (NFKC): give {normal!a}"
    if "\N{REPLACEMENT CHARACTER}" in name:
        return f"the name {name!a} has a character that could not be decoded (U+FFFD)"
    scripts = _scripts_of(name)
    if len(scripts) > 1 and not scripts <= _WRITTEN_TOGETHER:
        mixed = " and ".join(sorted(script.capitalize() for script in scripts))
        return f"the name {name!a} mixes letters of {mixed}, which look alike: give one that does not"
    return None


def _scripts_of(name: str) -> set[str]:
    """Return the scripts of a name's letters, by the first word of their names in Unicode."""
    if name.isascii():
        return set()
    words = {unicodedata.name(char, "").partition(" ")[0] for char in name if char.isalpha()}
    return words - _OF_SEVERAL_SCRIPTS
