"""How many topics and partitions somebody may have: counted by who made them, by the owner of `__meta`.

A topic's record names the principal that made it, for as long as the topic is there, whoever alters it. Topics of
before there were quotas, and those made where nobody has a name, are nobody's.
"""

from __future__ import annotations

from tidelog_broker.core.security.quotas import Quotas
from tidelog_broker.core.topics import TopicRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class TopicQuotas:
    """See the module.

    Args:
        quotas, topics: those of the cluster.
    """

    def __init__(self, quotas: Quotas, topics: TopicRegistry) -> None:
        self._quotas = quotas
        self._topics = topics

    def check(self, creator: str, caller: pb.Caller, *, topics: int, partitions: int) -> None:
        """Refuse more topics or partitions than their creator may have.

        Args:
            creator: who made them, or makes them now; empty: nobody is known.
            caller: who asks; its roles count where it is the creator.
            topics: so many more.
            partitions: the same.

        Raises:
            ProtocolError: QUOTA_EXCEEDED.
        """
        if not creator:
            return
        limits = self._quotas.of_principal(creator, caller.roles if caller.principal == creator else ())
        if limits.topics is None and limits.partitions is None:
            return
        made = [record for record in self._topics.live() if record.creator == creator]
        _check("topics", creator, limits.topics, len(made), topics)
        _check("partitions", creator, limits.partitions, sum(record.config.partitions for record in made), partitions)


def _check(what: str, creator: str, bound: int | None, there: int, more: int) -> None:
    if bound is not None and more and there + more > bound:
        raise ProtocolError(
            pb.QUOTA_EXCEEDED,
            f"{creator!r} has made {what} that are there: {there}; {more} more would be past its quota, which is "
            f"{bound}: delete some, or ask for a larger one",
        )
