"""One look at a cluster: its status, and how far behind its groups are.

The lag of a group takes a question for each topic that it reads, so only so many groups are asked about, those first
that committed last, a few at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog import Client, ClusterStatus, GroupInfo
from tidelog.errors import TidelogError

GROUPS_MAX: Final = 100
"""Groups whose lag is looked up."""
AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a cluster at one time.

    Attributes:
        at_s: when, by a clock that only goes on.
        status: nodes, topics, partitions.
        groups: all of them; none where the caller may not list them.
        lags: records that a group has still to read, by topic, of those that were asked about.
        groups_fault: why there are no groups, "" where there is no fault.
    """

    at_s: float
    status: ClusterStatus
    groups: Sequence[GroupInfo] = ()
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    groups_fault: str = ""


async def take_sample(client: Client) -> Sample:
    """Ask a cluster how it is.

    Raises:
        TidelogError: its status cannot be had.
    """
    status = await client.cluster_status()
    at_s = time.monotonic()
    try:
        groups = await client.groups.list()
    except TidelogError as error:
        return Sample(at_s, status, groups_fault=str(error))
    turns = asyncio.Semaphore(AT_ONCE)

    async def lag_of(group: str) -> Mapping[str, int] | None:
        async with turns:
            try:
                rows = await client.groups.lag(group)
            except TidelogError:  # it was deleted meanwhile, or its topics may not be read
                return None
        return {topic: sum(row.lag for row in rows if row.topic == topic) for topic in {row.topic for row in rows}}

    asked = [group.name for group in sorted(groups, key=lambda group: -(group.last_commit_us or 0))[:GROUPS_MAX]]
    found = await asyncio.gather(*map(lag_of, asked))
    lags = {name: lag for name, lag in zip(asked, found, strict=True) if lag is not None}
    return Sample(at_s, status, groups, lags)
