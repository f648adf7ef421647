"""Sampling of a cluster: its status, and the lag of its groups.

The lag of a group takes one request for each of its topics, so it is only sampled for a limited number of groups, those
with the latest commits first, a few at a time.
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
"""Maximum number of groups whose lag is sampled."""
AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of a cluster at one time.

    Attributes:
        at_s: time of the sample, by a monotonic clock.
        status: nodes, topics, partitions.
        groups: all groups that the caller may see; empty if they could not be listed.
        lags: records that a group has not read, by topic, for sampled groups.
        groups_fault: why the groups could not be listed; "" if there is no error.
    """

    at_s: float
    status: ClusterStatus
    groups: Sequence[GroupInfo] = ()
    lags: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    groups_fault: str = ""


async def take_sample(client: Client) -> Sample:
    """Request the status, the groups and the lag of some groups; if groups cannot be listed, `groups_fault` says why.

    Raises:
        TidelogError: the status of the cluster is not available.
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
            except TidelogError:  # The group was deleted, or access to it is denied.
                return None
        return {topic: sum(row.lag for row in rows if row.topic == topic) for topic in {row.topic for row in rows}}

    names = [group.name for group in sorted(groups, key=lambda group: -(group.last_commit_us or 0))[:GROUPS_MAX]]
    results = await asyncio.gather(*map(lag_of, names))
    lags = {name: lag for name, lag in zip(names, results, strict=True) if lag is not None}
    return Sample(at_s, status, groups, lags)
