"""DATA/meta/lives: the incarnations of this data directory, and the known ones of other nodes.

An entry about another directory replaces the previous entry of that directory. Entries about this directory are kept
per incarnation: its own (`own`), with the last durable tick, and starts of other copies of it (`elsewhere`). `dropped`
removes an entry. See `core.rollback_detection` and `core.known_incarnations` for their use.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

from tidelog_broker.storage.node.journal import JOURNAL_REMEDY
from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def _key(entry: pb.KnownIncarnation) -> Hashable:
    return entry.node_id, entry.directory_id, entry.incarnation if entry.own or entry.elsewhere else 0


def _fault(entry: pb.KnownIncarnation, _before: pb.KnownIncarnation | None) -> str:
    return "" if entry.incarnation else f"an entry of node {entry.node_id!r} has incarnation 0; {JOURNAL_REMEDY}"


INCARNATIONS: Final = JournalKind(
    magic=b"TLLJ",
    parse=pb.KnownIncarnation.FromString,
    key=_key,
    is_end=lambda entry: entry.dropped,
    is_sequel=False,
    fault=_fault,
)
