from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tidelog import Client, ClusterStatus, GroupInfo
from tidelog.errors import ForbiddenError, TidelogError, UnknownGroupError
from tidelog.model import Lag
from tidelog_cli.top import sampling
from tidelog_cli.top.sampling import take_sample


class Cluster:
    """As much of a client as a sample needs."""

    def __init__(self, groups: int, fault: TidelogError | None = None) -> None:
        self.asked: list[str] = []
        self.groups = self
        self._count, self._fault = groups, fault

    async def cluster_status(self) -> ClusterStatus:
        return ClusterStatus(bytes(16))

    async def list(self) -> Sequence[GroupInfo]:
        if self._fault is not None:
            raise self._fault
        return [GroupInfo(f"g{at}", "empty", 0, 0, 1, None, "a", at) for at in range(self._count)]

    async def lag(self, name: str) -> Sequence[Lag]:
        self.asked.append(name)
        if name == "g1":
            raise UnknownGroupError("deleted meanwhile")
        return [Lag("t", at, 0, 0, 5, 5, None, None) for at in range(2)]


def client(cluster: Cluster) -> Client:
    return cast("Client", cast("Any", cluster))


async def test_lags_are_by_topic_and_a_group_that_is_gone_has_none() -> None:
    sample = await take_sample(client(Cluster(3)))
    assert sample.lags == {"g0": {"t": 10}, "g2": {"t": 10}}
    assert len(sample.groups) == 3


async def test_only_so_many_groups_are_asked_about_the_newest_commits_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "GROUPS_MAX", 2)
    cluster = Cluster(5)
    await take_sample(client(cluster))
    assert sorted(cluster.asked) == ["g3", "g4"]


async def test_a_caller_without_permission_for_groups_gets_the_other_figures() -> None:
    sample = await take_sample(client(Cluster(1, ForbiddenError("no right to list groups"))))
    assert sample.groups == ()
    assert "no right" in sample.groups_fault
