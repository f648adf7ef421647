"""The storage engine of new topics of `tidelog up`, and the form of its node that fits the engine.

RocksDB is the form for a device: the smallest preset, and one partition of `__offsets`, which stays in segments,
instead of 16. Variables of the environment override these settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidelog_cli.base.extras import require_extras
from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_proto.topic_settings import OTHER_NAME_PATTERN

ROCKSDB: Final = "rocksdb"
_NAME: Final = re.compile(OTHER_NAME_PATTERN)
_VARIABLE: Final = "TIDELOG_NODE_ENGINE_DEFAULT"
_DEVICE: Final = {"TIDELOG_NODE_ROCKSDB_PRESET": "small", "TIDELOG_NODE_OFFSETS_PARTITIONS": "1"}


def check_engine(engine: str, nodes: int) -> None:
    """Refuse an engine that cannot be used; empty for that of the node's settings.

    Raises:
        CommandFailed: its name is invalid, its package is missing, or it cannot store the copies of a cluster.
    """
    if engine and not _NAME.fullmatch(engine):
        raise CommandFailed(
            f"--engine is the name of an engine, such as segment, memory or {ROCKSDB}, got {engine!r}", EXIT_USAGE
        )
    if engine == ROCKSDB:
        require_extras(f"up --engine {ROCKSDB}", ROCKSDB)
        if nodes > 1:
            raise CommandFailed(
                f"engine {ROCKSDB} stores one copy of each partition, so it cannot be the engine of new topics of "
                f"{nodes} nodes; omit --nodes, or omit --engine and create topics with replication_factor 1 and engine "
                f"{ROCKSDB}",
                EXIT_USAGE,
            )


def engine_variables(engine: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of nodes for an engine; an empty result without an engine."""
    if not engine:
        return {}
    form = {name: environ.get(name, value) for name, value in _DEVICE.items()} if engine == ROCKSDB else {}
    return {_VARIABLE: engine, **form}
