"""Encodings of record values in a response.

Without `value_encoding` each value is text if it is UTF-8, and base64 otherwise. With `value_encoding` all values have
that encoding; a value that does not fit it is a fault, and the response ends before it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_gateway.callers.turns import Pace
from tidelog_gateway.reading.json_check import first_not_json
from tidelog_gateway.reading.text_columns import base64_of, is_not_utf8, text_of

ValueEncoding = Literal["json", "utf8", "base64"]

FAULT_TEXTS: Final = {"utf8": "not UTF-8", "json": "not JSON"}
"""Encoding -> description of a value that does not fit it; `base64` fits every value."""


class Texts(NamedTuple):
    """A column of bytes as text.

    Attributes:
        texts: text of each row; null for null.
        in_base64: numpy array that has for each row whether its text is base64; None if no row is.
    """

    texts: Any
    in_base64: Any


async def first_fault(values: Any, encoding: ValueEncoding | None, pace: Pace) -> int | None:
    """Return the number of the first row whose value does not fit the encoding; None if all fit.

    Every value fits base64, and the encoding None, with which the encoding is chosen for each value.
    """
    if encoding not in FAULT_TEXTS:
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
    """Return a column of bytes as text, in the given encoding, which all rows fit, or chosen for each row."""
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
