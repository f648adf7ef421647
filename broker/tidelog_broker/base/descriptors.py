"""Distribution of the node's file descriptors over files and sockets (docs/adr/0129)."""

from __future__ import annotations

import logging
from typing import Final

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.storage.segment.active_files import active_files_max
from tidelog_broker.storage.segment.disk import FILES_PER_SEGMENT, open_segments_max
from tidelog_proto.process.file_descriptors import connections_that_fit, raise_descriptor_limit

log = logging.getLogger(__name__)

RESERVE: Final = 160
"""File descriptors reserved for journals, links to other nodes, the management port's 64 connections, short-lived files
and connections that are accepted only to be refused."""
CLIENTS_MIN: Final = 16


def clients_max(limit: int) -> int:
    """Return how many client connections are possible beside the log files and `RESERVE`; at least `CLIENTS_MIN`.

    Args:
        limit: maximum number of file descriptors of the process.
    """
    active = active_files_max(limit)
    cached = open_segments_max(limit) - active
    return max(CLIENTS_MIN, limit - active - FILES_PER_SEGMENT * max(0, cached) - RESERVE)


def fitted(settings: NodeSettings) -> NodeSettings:
    """Raise the process's limit of open files, and return the settings with a `connections_max` that fits in it.

    Logs a warning if it reduces `connections_max`.
    """
    fitting = connections_that_fit(settings.connections_max, clients_max(raise_descriptor_limit()), log)
    return settings.model_copy(update={"connections_max": fitting})
