"""A group's committed offsets in a topic, as the answer to `committed`, in bounded pages.

A topic has up to 100,000 partitions, and a note up to 4 KiB, so an answer is limited to the size of a batch message and
has the partition with which the next page begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from tidelog.model import Committed
from tidelog_gateway.context import Gateway
from tidelog_gateway.offsets import committed_of, committed_view
from tidelog_gateway.protocol.messages import CommittedQuery
from tidelog_proto.names import check_group_name, check_topic_name


async def positions(gateway: Gateway, query: CommittedQuery) -> dict[str, Any]:
    """Return the result of `committed`.

    Raises:
        ProtocolError: the name of the group or the topic is not valid.
        TidelogError: as `Client.committed`.
    """
    check_group_name(query.group)
    check_topic_name(query.topic)
    committed = await committed_of(gateway, query.group, query.topic)
    return {"group": query.group, **page_of(committed, query, bytes_max=gateway.settings.ws_batch_bytes_max)}


def page_of(committed: Iterable[Committed], query: CommittedQuery, *, bytes_max: int) -> dict[str, Any]:
    """Return one page of positions, and the first partition of the next page, None after the last page.

    Args:
        committed: all positions of the group in the topic, ordered by partition.
        query: selects positions.
        bytes_max: limit of the positions as JSON; the first one may exceed it.
    """
    numbers = None if query.partitions is None else frozenset(query.partitions)
    views: list[dict[str, Any]] = []
    size_bytes = 0
    for position in committed:
        if position.partition < query.from_partition or (numbers is not None and position.partition not in numbers):
            continue
        view = committed_view(position)
        size_bytes += len(orjson.dumps(view))
        if views and size_bytes > bytes_max:
            return {"offsets": views, "from_partition": position.partition}
        views.append(view)
    return {"offsets": views, "from_partition": None}
