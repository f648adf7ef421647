"""How a node shares out the files and sockets that it may have open (docs/adr/0129)."""

from __future__ import annotations

import logging
from typing import Final

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.storage.segment.active_files import active_files_max
from tidelog_broker.storage.segment.disk import FILES_PER_SEGMENT, open_segments_max
from tidelog_proto.process.file_descriptors import REMEDY, raise_descriptor_limit

log = logging.getLogger(__name__)

RESERVE: Final = 160
"""For journals, links to other nodes, the management port's 64 connections, files that are open for a moment, and for
connections that are accepted only to be refused."""
CLIENTS_MIN: Final = 16


def clients_max(limit: int) -> int:
    """Return how many connections of clients fit beside the files of logs where `limit` descriptors may be open."""
    active = active_files_max(limit)
    cached = open_segments_max(limit) - active
    return max(CLIENTS_MIN, limit - active - FILES_PER_SEGMENT * max(0, cached) - RESERVE)


def fitted(settings: NodeSettings) -> NodeSettings:
    """Raise the limit of open files; return settings with no more connections than fit, and warn of that."""
    limit = raise_descriptor_limit()
    fitting = clients_max(limit)
    if fitting >= settings.connections_max:
        return settings
    log.warning(
        "this process may have %d files open: %d connections of clients fit, not connections_max = %d; %s",
        limit,
        fitting,
        settings.connections_max,
        REMEDY,
    )
    return settings.model_copy(update={"connections_max": fitting})
