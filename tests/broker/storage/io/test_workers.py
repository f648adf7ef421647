from __future__ import annotations

import os
import sys
import threading
from functools import partial

import pytest

from tidelog_broker.storage.io.workers import OPTIONAL_QUEUE_MAX, IoWorkers, WorkersFullError, io_key


def test_work_of_one_key_runs_in_order_on_one_thread() -> None:
    workers = IoWorkers(3)
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    futures = [workers.submit(7, note, n) for n in range(200)]
    for future in futures:
        future.result()
    assert [number for number, _ in seen] == list(range(200))
    assert len({thread for _, thread in seen}) == 1
    workers.close()


def test_keys_are_spread_over_independent_threads() -> None:
    workers = IoWorkers(2)
    gate = threading.Event()
    blocked = workers.submit(0, gate.wait)
    assert workers.submit(1, lambda: "free").result(timeout=30) == "free"
    gate.set()
    assert blocked.result(timeout=30)
    workers.close()


def test_topics_take_turns_and_the_tasks_of_a_topic_keep_their_order() -> None:
    """A topic whose partitions all write does not keep another one waiting for each of them."""
    workers = IoWorkers(1)
    gate, started = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        gate.wait()

    ran: list[str] = []
    workers.submit(0, block)
    started.wait()
    for partition in range(1000):
        workers.submit(io_key(b"large", partition), ran.append, f"large/{partition}")
    for number in range(3):
        workers.submit(io_key(b"small", 0), ran.append, f"small/{number}")
    gate.set()
    workers.close()
    assert ran[:6] == ["large/0", "small/0", "large/1", "small/1", "large/2", "small/2"]
    assert [name for name in ran if name.startswith("large")] == [f"large/{partition}" for partition in range(1000)]


def test_partitions_of_a_topic_are_spread_over_the_threads() -> None:
    assert {io_key(b"topic", partition) % 2 for partition in range(100)} == {0, 1}
    assert io_key(b"topic", 7) == io_key(b"topic", 7) >= 0


def test_results_and_errors_are_returned() -> None:
    workers = IoWorkers(1)
    assert workers.submit(0, divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        workers.submit(0, divmod, 7, 0).result()
    assert workers.submit(0, divmod, 7, 2).result() == (3, 1)
    workers.close()


def test_queue_is_bounded_and_cancelled_work_is_skipped() -> None:
    workers = IoWorkers(1, pending_max=2)
    gate, started = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        gate.wait()

    workers.submit(0, block)
    started.wait()
    ran: list[int] = []
    first = workers.submit(0, ran.append, 1)
    workers.submit(0, ran.append, 2)
    with pytest.raises(WorkersFullError, match="limit of 2 queued tasks"):
        workers.submit(0, ran.append, 3)
    assert first.cancel()
    gate.set()
    workers.close()
    assert ran == [2]


def test_close_finishes_submitted_work_and_refuses_more() -> None:
    workers = IoWorkers(2)
    done: list[int] = []
    for number in range(50):
        workers.submit(number, done.append, number)
    workers.close()
    assert sorted(done) == list(range(50))
    with pytest.raises(RuntimeError, match="closed"):
        workers.submit(0, done.append, 1)


def test_threads_start_with_the_first_work() -> None:
    before = threading.active_count()
    workers = IoWorkers(4)
    assert threading.active_count() == before
    workers.close()


def test_offers_run_in_order_and_are_declined_after_close() -> None:
    workers = IoWorkers(1)
    seen: list[int] = []
    for number in range(OPTIONAL_QUEUE_MAX):
        assert workers.offer(partial(seen.append, number))
    workers.close()
    assert seen == list(range(OPTIONAL_QUEUE_MAX))
    assert not workers.offer(partial(seen.append, -1))
    workers.close()
    assert seen == list(range(OPTIONAL_QUEUE_MAX))


def test_offer_is_declined_on_a_long_queue_but_work_is_not() -> None:
    workers = IoWorkers(1)
    gate = threading.Event()

    def wait() -> None:
        gate.wait()

    taken = sum(workers.offer(wait) for _ in range(2 * OPTIONAL_QUEUE_MAX))
    assert OPTIONAL_QUEUE_MAX <= taken <= OPTIONAL_QUEUE_MAX + 1, "one is being done, the others wait"
    after = workers.submit(0, lambda: "done")
    gate.set()
    assert after.result(10) == "done"
    workers.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no niceness of threads")
def test_niceness_applies_to_the_threads_of_the_workers_alone() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    workers = IoWorkers(1, niceness=3)
    try:
        found = workers.submit(0, lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result(10)
    finally:
        workers.close()
    assert found == min(own + 3, 19)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
