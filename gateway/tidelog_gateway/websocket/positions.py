"""What a group has committed in a topic, read back over a WebSocket: one bounded page at a time.

A topic has up to 16,384 partitions, and a note up to 4 KiB, so an answer is cut off where it has as many bytes as a
batch message may have, and says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from tidelog.model import Committed
from tidelog_gateway.context import Gateway
from tidelog_gateway.offsets import committed_of, committed_view
from tidelog_gateway.websocket.messages import AskCommitted
from tidelog_proto.names import check_group_name, check_topic_name


async def positions(gateway: Gateway, asked: AskCommitted) -> dict[str, Any]:
    """Return the result of `committed`.

    Raises:
        ProtocolError: no group or topic has such a name.
        TidelogError: as `Client.committed`.
    """
    check_group_name(asked.group)
    check_topic_name(asked.topic)
    held = await committed_of(gateway, asked.group, asked.topic)
    return {"group": asked.group, **page_of(held, asked, bytes_max=gateway.settings.ws_batch_bytes_max)}


def page_of(held: Iterable[Committed], asked: AskCommitted, *, bytes_max: int) -> dict[str, Any]:
    """Return the positions asked for that fit, by partition, and the partition to go on from, None when that is all.

    Args:
        held: what the group has in the topic, ordered by partition.
        asked: which of them.
        bytes_max: of the positions as JSON; the first one may pass.
    """
    wanted = None if asked.partitions is None else frozenset(asked.partitions)
    views: list[dict[str, Any]] = []
    size_bytes = 0
    for position in held:
        if position.partition < asked.from_partition or (wanted is not None and position.partition not in wanted):
            continue
        view = committed_view(position)
        size_bytes += len(orjson.dumps(view))
        if views and size_bytes > bytes_max:
            return {"offsets": views, "from_partition": position.partition}
        views.append(view)
    return {"offsets": views, "from_partition": None}
