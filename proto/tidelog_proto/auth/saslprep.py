"""How names and passwords are written before they are compared: SASLprep (RFC 4013), so that one word has one form.

Code points that Unicode 3.2 does not know stay as they are, where RFC 4013 would refuse them in what is stored: a
password may have newer characters in it, and they compare by their code points.
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
    """Return the one form of a name or a password.

    Raises:
        ValueError: nothing is left of it, or a character may not be in it; the text is not told.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise ValueError("it is empty")
    if any(prohibited(char) for char in prepared for prohibited in _PROHIBITED):
        raise ValueError("it has a character that names and passwords may not have, such as a control character")
    if any(map(stringprep.in_table_d1, prepared)):  # from right to left: then all of it, from end to end
        ends_well = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not ends_well or any(map(stringprep.in_table_d2, prepared)):
            raise ValueError("it mixes directions of writing")
    return prepared
