"""Parameters of load shedding: when the request or the response budget is exhausted, stalled connections are closed."""

from __future__ import annotations

from typing import Final

from tidelog_proto.limits import KIB

STALL_TIMEOUT_S: Final = 1.0
"""How long a connection may send or read nothing while others wait for memory."""

PROGRESS_BYTES: Final = 64 * KIB
"""An unfinished connection that has transferred fewer bytes than this in `STALL_TIMEOUT_S` makes no progress."""

SHED_INTERVAL_S: Final = 0.1
"""Poll interval of connections that wait for memory of a budget."""
