"""DATA/meta/lives: the lives that this directory has had, and what is known of those of other nodes.

An entry about another directory replaces the one before it of the same directory. Entries about this directory itself
are kept for each life: those that it has had (`own`), with the last durable tick, and starts that it does not contain
(`elsewhere`). `dropped` removes one. Why they are kept: `core.lives`, `core.known_lives`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def _key(entry: pb.KnownLife) -> Hashable:
    return entry.node_id, entry.directory_id, entry.incarnation if entry.own or entry.elsewhere else 0


def _fault(entry: pb.KnownLife, _before: pb.KnownLife | None) -> str:
    return "" if entry.incarnation else f"a life of the node {entry.node_id!r} has no incarnation"


LIVES: Final = JournalKind(
    magic=b"TLLJ",
    parse=pb.KnownLife.FromString,
    key=_key,
    is_end=lambda entry: entry.dropped,
    is_sequel=False,
    fault=_fault,
)
