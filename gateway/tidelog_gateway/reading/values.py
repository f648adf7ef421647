"""How the values of records are written in an answer: what `value_encoding` asks for, or what each value needs.

Without `value_encoding` a value is text where it is UTF-8 and base64 where it is not, record by record. An encoding
that is asked for holds for every value; a value that it cannot hold is a fault, and the answer ends in front of it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_gateway.pace import Pace
from tidelog_gateway.reading.json_check import first_not_json
from tidelog_gateway.reading.text_columns import base64_of, is_not_utf8, text_of

ValueEncoding = Literal["json", "utf8", "base64"]

WHAT: Final = {"utf8": "not UTF-8", "json": "not JSON"}
"""What is wrong with a value that an encoding cannot hold."""


class Texts(NamedTuple):
    """A column of bytes as text.

    Attributes:
        texts: the text of each row; null for null.
        in_base64: for each row whether its text is base64, as a numpy array; None where no row is.
    """

    texts: Any
    in_base64: Any


async def first_fault(values: Any, encoding: ValueEncoding | None, pace: Pace) -> int | None:
    """Return the first row whose value the encoding cannot hold; None where it holds all."""
    if encoding not in WHAT:
        return None
    texts = text_of(values)
    fault: int | None = None
    if texts is None:
        fault = int(np.argmax(is_not_utf8(values)))
        texts = text_of(values.slice(0, fault))
    if encoding == "json":
        not_json = await first_not_json(texts, pace)
        fault = not_json if not_json is not None else fault
    return fault


def texts_of(column: Any, encoding: ValueEncoding | None = None) -> Texts:
    """Return a column of bytes as text, in an encoding that holds all of it, or as each row needs it."""
    if encoding == "base64":
        return Texts(base64_of(column), np.ones(len(column), bool))
    texts = text_of(column)
    if texts is not None:
        return Texts(texts, None)
    in_base64 = is_not_utf8(column)
    mask = pa.array(in_base64)
    no_bytes = pa.scalar(None, column.type)
    valid = text_of(pc.if_else(mask, no_bytes, column))
    return Texts(pc.coalesce(valid, base64_of(pc.if_else(mask, column, no_bytes))), in_base64)
