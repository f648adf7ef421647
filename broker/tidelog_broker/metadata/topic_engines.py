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
from tidelog_proto.topic_settings import MEMORY_ASYNC


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
        lambda config: config.flush == pb.ASYNC,
        lambda can: can.write_behind,
        "flush=async",
        "write records in the background",
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
        default: the engine of new topics that set none.
        shares_files: whether new topics in segments that set no file model get the shared one.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        capabilities: Callable[[str], Capabilities],
        default: str = SEGMENT,
        *,
        shares_files: bool = False,
    ) -> None:
        self._names = names
        self._capabilities = capabilities
        self._default = default
        self._shares_files = shares_files

    def fill_in(self, config: pb.TopicConfig) -> bool:
        """Set the node's engine and file model in the configuration of a new topic that sets none.

        Returns whether it changed; the usual values, segment and a file of each partition, stay unset.
        """
        is_changed = False
        if not config.engine and self._default != SEGMENT:
            config.engine, is_changed = self._default, True
        if not config.file_model and self._shares_files and config.engine in {"", SEGMENT}:
            config.file_model, is_changed = pb.SHARED, True
        return is_changed

    def check(self, config: pb.TopicConfig) -> None:
        """Refuse a configuration that its engine cannot apply.

        Raises:
            ProtocolError: INVALID_REQUEST with the setting, what the engine cannot do, and the engines that can.
        """
        name = config.engine or SEGMENT
        if name == SHARED:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"engine {name} cannot be set by its name; set file_model to shared, with engine {SEGMENT}",
            )
        if name == MEMORY_ASYNC:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"engine {name} cannot be set by its name; set engine to memory and flush to async"
            )
        if name == SEGMENT and config.flush != pb.ASYNC:
            return
        if config.file_model == pb.SHARED and name != SEGMENT:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"file_model=shared is a choice of engine {SEGMENT}, not of {name}; set file_model to per-partition, "
                f"or engine to {SEGMENT}",
            )
        try:
            can = self._capabilities(name)
        except EngineMissingError:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"engine {name!r} is not installed on the node that owns __meta; installed are "
                f"{', '.join(self._names())}; install its package on every node and restart them",
            ) from None
        for need in _NEEDS:
            if need.is_needed(config) and not need.is_met(can):
                able = ", ".join(self._able(config))
                raise ProtocolError(
                    pb.INVALID_REQUEST,
                    f"engine {name} cannot {need.lacks}, as required by {need.setting}; {need.remedy}, or use "
                    f"another engine: {able}",
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
