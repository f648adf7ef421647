"""Required content of each node's metadata journal: all valid entries, and no forgotten ones (I24)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

Live = dict[PartitionKey, list[bytes]]


class Journals:
    """An all-knowing copy of the journals, by the number of the machine."""

    def __init__(self, fail: Callable[[str, str], NoReturn]) -> None:
        self._fail = fail
        self._stands: dict[int, Live] = {}
        self._unsure: dict[int, list[pb.ChainEntry]] = {}
        """Entries being written: after a crash any prefix of them may exist."""
        self._rolled_back: set[int] = set()
        self.forgotten = 0
        self.compactions = 0

    def made(self, machine: int) -> None:
        """The disk is new."""
        self._stands.pop(machine, None)
        self._unsure.pop(machine, None)

    def rolled_back(self, machine: int) -> None:
        """The disk was put back to an earlier state, whatever that holds."""
        self.made(machine)
        self._rolled_back.add(machine)

    def appends(self, machine: int, entries: Sequence[pb.ChainEntry]) -> None:
        """Entries are being written."""
        self._unsure[machine] = list(entries)

    def appended(self, machine: int) -> None:
        """They are durable, or, if there was no space, were not written."""
        entries = self._unsure.pop(machine)
        self._stands[machine] = _with(self._stands.get(machine, {}), entries)
        self.forgotten += sum(entry.forgotten for entry in entries)

    def not_appended(self, machine: int) -> None:
        """There was no space for them."""
        self._unsure.pop(machine)

    def opened(self, machine: int, found: Sequence[pb.ChainEntry]) -> None:
        """A node reads its journal."""
        live = _with({}, found)
        if machine in self._rolled_back:
            self._rolled_back.discard(machine)
            self._stands[machine] = live
            return
        stood, unsure = self._stands.get(machine, {}), self._unsure.pop(machine, [])
        allowed = [_with(stood, unsure[:count]) for count in range(len(unsure) + 1)]
        if live not in allowed:
            gone = [key for key in stood if len(live.get(key, [])) < len(stood[key])]
            back = [key for key in live if key not in allowed[-1]]
            self._fail("I24", f"the metadata journal of machine {machine} has lost {gone} and has again {back}")
        self._stands[machine] = live


def _with(live: Live, entries: Sequence[pb.ChainEntry]) -> Live:
    found = {key: list(raw) for key, raw in live.items()}
    for entry in entries:
        key = (entry.topic_id, entry.partition)
        if entry.forgotten:
            found.pop(key, None)
        else:
            found.setdefault(key, []).append(entry.SerializeToString())
    return found
