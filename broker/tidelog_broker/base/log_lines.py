"""Lines of the node's log: one each, whatever names stand in them."""

from __future__ import annotations

import logging
from typing import Final

from tidelog_proto.printable import printable

LINE_CHARS_MAX: Final = 64_000


class LineFormatter(logging.Formatter):
    """Escapes what is not printable in a message. Tracebacks behind it keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it so
        """Return the line of a message."""
        record.message = printable(record.message, LINE_CHARS_MAX)
        return super().formatMessage(record)
