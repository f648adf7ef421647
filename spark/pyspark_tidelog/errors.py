"""What the data source raises: a wrong option or schema, and records that are gone.

    TidelogSourceError
    ├── OptionError      the reader was asked for something that cannot be; also a ValueError
    ├── DataLossError    records of the planned range are no longer (or not) in the log
    └── ChangedRowsError a batch that is written once more is not the one that it was

Spark carries an exception out of its Python workers as text, so the message alone must say what to do next.
Faults of the connection are raised by the client and pass through as they are.
"""

from __future__ import annotations


class TidelogSourceError(Exception):
    """Base of everything that this package raises itself."""


class OptionError(TidelogSourceError, ValueError):
    """An option or a schema is wrong; the message names it and what would be right."""


class DataLossError(TidelogSourceError):
    """Records that were asked for are not there, and `failOnDataLoss` is on."""


class ChangedRowsError(TidelogSourceError):
    """A batch that is written once more lacks rows that an earlier try has written."""
