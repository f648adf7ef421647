"""Checks whether the storage engine of a topic can apply the settings of that topic.

The owner of `__meta` compares the settings with the capabilities of the engine that it has installed. Whether other
nodes have it is seen when they open a partition: without it the partition is unavailable on that node (ADR 0182).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tidelog_broker.storage.engine.store import SEGMENT, SHARED, Capabilities
from tidelog_broker.storage.io.errors import EngineMissingError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class _Need(NamedTuple):
    """A capability that some settings need.

    Attributes:
        is_needed: whether a configuration needs it.
        is_met: whether an engine has it.
        setting: the settings that need it, for messages.
        lacks: the ability that an engine without it does not have, after "cannot".
        remedy: which value does not need it.
    """

    is_needed: Callable[[pb.TopicConfig], bool]
    is_met: Callable[[Capabilities], bool]
    setting: str
    lacks: str
    remedy: str


_NEEDS: Final = (
    _Need(
        lambda config: config.flush in {pb.ALWAYS, pb.INTERVAL},
        lambda can: can.durable,
        "flush=always and flush=interval",
        "write records to a disk",
        "set flush to never",
    ),
    _Need(
        lambda config: config.replication_factor > 1,
        lambda can: can.replicated,
        "a replication_factor above 1",
        "store replicated partitions",
        "set replication_factor to 1",
    ),
    _Need(
        lambda config: config.cleanup in {pb.COMPACT, pb.COMPACT_AND_DELETE},
        lambda can: can.compactable,
        "cleanup=compact",
        "be compacted",
        "set cleanup to delete",
    ),
)


class TopicEngines:
    """Checks topic configurations against the capabilities of the installed engines.

    Args:
        names: returns the names of the installed engines.
        capabilities: returns the capabilities of an engine; raises EngineMissingError.
    """

    def __init__(self, names: Callable[[], Iterable[str]], capabilities: Callable[[str], Capabilities]) -> None:
        self._names = names
        self._capabilities = capabilities

    def check(self, config: pb.TopicConfig) -> None:
        """Refuse a configuration that its engine cannot apply.

        Raises:
            ProtocolError: INVALID_REQUEST with the setting, what the engine cannot do, and the engines that can.
        """
        if config.engine == SHARED:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"engine {SHARED} cannot be chosen by its name; set file_model to shared, with engine {SEGMENT}",
            )
        if config.engine in {"", SEGMENT}:
            return
        if config.file_model == pb.SHARED:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"file_model=shared is a choice of engine {SEGMENT}, not of {config.engine}; set file_model to "
                f"per-partition, or engine to {SEGMENT}",
            )
        try:
            can = self._capabilities(config.engine)
        except EngineMissingError:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"engine {config.engine!r} is not installed on the node that owns __meta; installed are "
                f"{', '.join(self._names())}; install its package on every node and restart them",
            ) from None
        for need in _NEEDS:
            if need.is_needed(config) and not need.is_met(can):
                able = ", ".join(self._able(config))
                raise ProtocolError(
                    pb.INVALID_REQUEST,
                    f"engine {config.engine} cannot {need.lacks}, as required by {need.setting}; {need.remedy}, or use "
                    f"another engine: {able}",
                )

    def check_change(self, before: pb.TopicConfig, after: pb.TopicConfig) -> None:
        """Refuse a change that `check` refuses, or one to another engine that loses its records in a restart.

        The loss of the new engine's records would leave a gap in the log after the records in the earlier engine.

        Raises:
            ProtocolError: INVALID_REQUEST with the engines that can apply the change.
        """
        self.check(after)
        if after.engine in {before.engine, "", SEGMENT} or self._capabilities(after.engine).survives_restart:
            return
        able = [name for name in self._able(after) if self._capabilities(name).survives_restart]
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"engine {after.engine} loses its records in a restart, which would leave a gap in the log after the "
            f"records that this topic has in engine {before.engine or SEGMENT}; create another topic with "
            f"{after.engine}, or use an engine that keeps its records: {', '.join(able)}",
        )

    def _able(self, config: pb.TopicConfig) -> list[str]:
        """Return the installed engines that can apply a configuration."""
        found: list[str] = []
        for name in self._names():
            try:
                can = self._capabilities(name)
            except EngineMissingError:
                continue
            if all(need.is_met(can) for need in _NEEDS if need.is_needed(config)):
                found.append(name)
        return found
