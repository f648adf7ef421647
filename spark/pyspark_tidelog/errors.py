"""Errors of the data source: invalid options or schemas, and lost or changed records.

    TidelogSourceError
    ├── OptionError      invalid options or schema; also a ValueError
    ├── DataLossError    records of the planned range are missing from the log
    └── ChangedRowsError a repeated batch differs from the first attempt

Spark passes exceptions of its Python workers on as text, so the message must contain the remedy. Connection errors are
raised by the client and not wrapped.
"""

from __future__ import annotations


class TidelogSourceError(Exception):
    """Base class of the errors of this package."""


class OptionError(TidelogSourceError, ValueError):
    """An option or a schema is invalid; the message contains its name and valid values."""


class DataLossError(TidelogSourceError):
    """Requested records are missing, and `failOnDataLoss` is on."""


class ChangedRowsError(TidelogSourceError):
    """A repeated batch lacks rows that an earlier attempt has written."""
