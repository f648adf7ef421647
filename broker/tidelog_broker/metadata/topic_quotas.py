"""The quotas on the number of topics and partitions of a principal, enforced by the owner of `__meta`.

A topic's record names the principal that created it, whoever alters it later. Topics without a creator, which were
created without authentication or by an older release, do not count.
"""

from __future__ import annotations

import shlex

from tidelog_broker.core.security.quota_rules import Quotas
from tidelog_broker.core.topics import TopicRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class TopicQuotas:
    """Checks the quotas of topic creators."""

    def __init__(self, quotas: Quotas, topics: TopicRegistry) -> None:
        self._quotas = quotas
        self._topics = topics

    def check(self, creator: str, caller: pb.Caller, *, topics: int, partitions: int) -> None:
        """Refuse more topics or partitions than their creator may have.

        Args:
            creator: the principal that creates or has created them; empty if unknown.
            caller: the caller; its roles are used if it is the creator.
            topics: number of additional topics.
            partitions: number of additional partitions.

        Raises:
            ProtocolError: QUOTA_EXCEEDED.
        """
        if not creator:
            return
        limits = self._quotas.of_principal(creator, caller.roles if caller.principal == creator else ())
        if limits.topics is None and limits.partitions is None:
            return
        existing = self._topics.created_by(creator)
        _check("topics", creator, limits.topics, existing.topics, topics)
        _check("partitions", creator, limits.partitions, existing.partitions, partitions)


def _check(what: str, creator: str, bound: int | None, existing: int, more: int) -> None:
    if bound is not None and more and existing + more > bound:
        raise ProtocolError(
            pb.QUOTA_EXCEEDED,
            f"principal {creator!r} has created {existing} {what}, and {more} more would exceed its quota of {bound}; "
            f"delete topics, or raise the quota with: tidelog quota set {shlex.quote(creator)} --{what} N",
        )
