from __future__ import annotations

import threading
from functools import partial

from tidelog_broker.storage.io.background import Background


def test_requests_run_in_order_on_another_thread_and_close_waits_for_them() -> None:
    background = Background("test")
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    for number in range(20):
        assert background.request(partial(note, number))
    background.close()
    assert [number for number, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert not background.request(lambda: None)
    background.close()


def test_a_full_queue_declines() -> None:
    background = Background("test")
    gate = threading.Event()

    def wait() -> None:
        gate.wait()

    declined = False
    for _ in range(2000):
        declined = declined or not background.request(wait)
    gate.set()
    background.close()
    assert declined
