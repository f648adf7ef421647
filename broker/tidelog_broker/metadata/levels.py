"""Feature levels: which features a cluster may use, so that an upgrade can be undone until an operator finalises it.

Each level adds features (`metadata.features`) to those of the level before. A record of `__meta` holds the level of the
cluster; without that record the level is 1. A feature of a higher level is refused although every node supports it:
a record that needs the feature would keep older builds from starting. `tidelog cluster finalize` raises the level, and
the record of the level needs all of its features, so that older builds are refused from then on (ADR 0162).

The owner of `__meta` founds a new cluster at the level of its own build.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import FLUSH_ASYNC, TOPIC_SETTINGS, TYPED

USERS: Final = "security.users"
GROUP_QUOTAS: Final = "quota.groups"
IMPERSONATE: Final = "rule.impersonate"
LEVELS_KNOWN: Final = "cluster.level"
"""Feature of builds that can read the record of the cluster's level; a build without it stops at that record."""


@dataclass(frozen=True, slots=True)
class Level:
    """A feature level, the first release that supports it, and the features that it adds."""

    number: int
    since: str
    features: frozenset[str]


def _level(number: int, since: str, *features: str) -> Level:
    """Return the level of a release: these features, and those of the topic settings that are new in the release."""
    settings = (setting for setting in TOPIC_SETTINGS.values() if setting.feature and setting.since == since)
    return Level(number, since, frozenset({*features, *(setting.feature for setting in settings)}))


LEVELS: Final = (
    _level(1, "0.1.0"),
    _level(2, "0.2.0", USERS, GROUP_QUOTAS, IMPERSONATE, LEVELS_KNOWN),
    _level(3, "0.3.0", FLUSH_ASYNC, TYPED),
)
"""All levels, in ascending order. docs/upgrading.md has the same table."""


def features_up_to(number: int) -> frozenset[str]:
    """Return the features of a level and of all levels before it."""
    return frozenset().union(*(level.features for level in LEVELS if level.number <= number))


def supported_by(features: Collection[str]) -> int:
    """Return the highest level whose features, together with those of all lower levels, are in `features`."""
    return max(level.number for level in LEVELS if features_up_to(level.number) <= frozenset(features))


class LevelState:
    """The level of the cluster, from its record."""

    def __init__(self) -> None:
        self.record = pb.ClusterLevel()
        """The newest revision; revision 0: the cluster has no record."""

    @property
    def number(self) -> int:
        """The level of the cluster."""
        return max(self.record.level, LEVELS[0].number)

    def apply(self, record: pb.ClusterLevel) -> bool:
        """Apply a record; return whether it is newer than the applied one."""
        if record.revision <= self.record.revision:
            return False
        self.record = record
        return True

    def raised_to(self, number: int) -> pb.ClusterLevel:
        """Return the record by which a cluster gets a higher level."""
        return pb.ClusterLevel(level=number, revision=self.record.revision + 1, features=sorted(features_up_to(number)))


def wrapped_level(record: pb.ClusterLevel) -> pb.MetaRecord:
    """Return the record of the level as it is written to `__meta`."""
    return pb.MetaRecord(level=record)
