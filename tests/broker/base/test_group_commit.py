from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.broker.stand import settled

from tidelog_broker.base import group_commit
from tidelog_broker.base.group_commit import GroupCommit
from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.io.workers import IoWorkers


class Journal:
    """Notes groups; waits at a gate and raises when told to."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.errors: list[Exception] = []
        self.is_marking = threading.Event()
        """Set when a mark has begun, also while the gate is closed."""
        self.marks: list[int] = []
        """How many groups there were, at each mark."""

    def mark(self) -> None:
        self.is_marking.set()
        assert self.gate.wait(10)
        if self.errors:
            raise self.errors.pop()
        self.marks.append(len(self.groups))

    def append(self, entries: list[int]) -> None:
        assert self.gate.wait(10)
        if self.errors:
            raise self.errors.pop()
        self.groups.append(entries)


class Subject:
    def __init__(self, workers: IoWorkers) -> None:
        self.journal = Journal()
        self.failures: list[BaseException] = []
        self.full: list[DiskFullError] = []
        self.done: list[int] = []
        self.commit: GroupCommit[int] = GroupCommit(
            self.journal.append,
            mark=self.journal.mark,
            offload=Offload(workers, asyncio.get_running_loop()),
            key=0,
            failed=self.failures.append,
            full=self.full.append,
        )

    def submit(self, *entries: int) -> asyncio.Event:
        done = asyncio.Event()

        def durable() -> None:
            self.done.extend(entries)
            done.set()

        self.commit.submit(entries, durable)
        return done


@pytest.fixture
async def subject() -> AsyncIterator[Subject]:
    workers = IoWorkers(1)
    made = Subject(workers)
    yield made
    await made.commit.close()
    workers.close()


async def test_entries_of_one_turn_share_an_append(subject: Subject) -> None:
    subject.journal.gate.clear()
    subject.submit(1)
    subject.submit(2, 3)
    await asyncio.sleep(0.01)
    subject.submit(4)
    last = subject.submit(5)
    assert not subject.done
    subject.journal.gate.set()
    await last.wait()
    assert subject.journal.groups == [[1, 2, 3], [4, 5]]
    assert subject.done == [1, 2, 3, 4, 5]


async def test_full_journal_is_retried_with_all_entries(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "FULL_RETRY_S", 0.01)
    subject.journal.errors = [DiskFullError("no space"), DiskFullError("no space")]
    first = subject.submit(1)
    await asyncio.sleep(0)
    second = subject.submit(2)
    await first.wait()
    await second.wait()
    assert len(subject.full) == 2
    assert subject.done == [1, 2]
    assert not subject.failures


async def test_failed_journal_is_reported_once_and_not_reused(subject: Subject) -> None:
    subject.journal.errors = [StorageFailedError("broken")]
    done = subject.submit(1)
    await settled(lambda: bool(subject.failures), "the failure was not reported")
    subject.submit(2)
    await asyncio.sleep(0.01)
    assert (len(subject.failures), subject.journal.groups) == (1, [])
    assert not done.is_set()


async def test_close_waits_for_the_current_append_and_drops_the_rest(subject: Subject) -> None:
    subject.journal.gate.clear()
    subject.submit(1)
    await asyncio.sleep(0.01)
    subject.submit(2)
    closing = asyncio.create_task(subject.commit.close())
    await asyncio.sleep(0)
    assert not closing.done()
    subject.journal.gate.set()
    await closing
    assert subject.journal.groups == [[1]]
    subject.submit(3)
    await asyncio.sleep(0.01)
    assert subject.journal.groups == [[1]]


async def test_mark_follows_a_quiet_moment(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MARK_AFTER_S", 3600.0)
    await subject.submit(1).wait()
    await settled(lambda: subject.commit._mark_timer is not None, "no mark is due")
    due = subject.commit._mark_timer
    assert due is not None
    monkeypatch.setattr(group_commit, "MARK_AFTER_S", 0.01)
    await subject.submit(2).wait()
    assert due.cancelled(), "the commit in between has postponed the mark"
    await settled(lambda: bool(subject.journal.marks), "no mark came")
    assert subject.journal.marks == [2]
    subject.journal.is_marking.clear()
    await subject.submit(3).wait()
    subject.journal.gate.clear()
    await settled(subject.journal.is_marking.is_set, "no other mark came")
    done = subject.submit(4)
    assert not done.is_set()
    subject.journal.gate.set()
    await done.wait()
    assert subject.journal.groups == [[1], [2], [3], [4]]
    assert subject.journal.marks[:2] == [2, 3], "the one that was on its way came first"


async def test_failed_mark_is_reported(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MARK_AFTER_S", 0.2)
    await subject.submit(1).wait()
    subject.journal.errors.append(StorageFailedError("broken"))
    await settled(lambda: bool(subject.failures), "the failure was not reported")
    subject.submit(2)
    assert subject.journal.groups == [[1]]
