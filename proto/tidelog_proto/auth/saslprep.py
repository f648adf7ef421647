"""SASLprep (RFC 4013): the normal form of user names and passwords.

Code points that Unicode 3.2 does not assign are kept, although RFC 4013 prohibits them in stored strings: passwords may
contain newer characters, which are compared by code point.
"""

from __future__ import annotations

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str) -> str:
    """Return the normal form of a user name or password.

    Raises:
        ValueError: the result is empty, contains a prohibited character, or mixes right-to-left with left-to-right
            text. The message does not contain the text.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise ValueError("the text is empty, or has only characters that are ignored (RFC 4013)")
    if any(prohibited(char) for char in prepared for prohibited in _PROHIBITED):
        raise ValueError(
            "the text has a character that is prohibited in names and passwords (RFC 4013), such as a control "
            "character; leave that character out"
        )
    # Right-to-left text must begin and end with a right-to-left character.
    if any(map(stringprep.in_table_d1, prepared)):
        ends_well = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not ends_well or any(map(stringprep.in_table_d2, prepared)):
            raise ValueError(
                "the text has right-to-left characters, so it must begin and end with one, and have no left-to-right "
                "character (RFC 4013)"
            )
    return prepared
