from __future__ import annotations

import pytest

from tidelog_gateway.auth import login_rate_limit
from tidelog_gateway.auth.login_rate_limit import LoginRateLimit


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_failures_are_limited_to_a_burst_and_then_one_a_second() -> None:
    clock = Clock()
    tries = LoginRateLimit(3, clock)
    for _ in range(3):
        assert tries.wait_s("10.0.0.1") == 0
        tries.failed("10.0.0.1")
    assert tries.wait_s("10.0.0.1") == pytest.approx(1)
    assert tries.wait_s("10.0.0.2") == 0
    clock.now_s += 1
    assert tries.wait_s("10.0.0.1") == 0
    tries.failed("10.0.0.1")
    assert tries.wait_s("10.0.0.1") > 0
    clock.now_s += 1000
    for _ in range(3):
        assert tries.wait_s("10.0.0.1") == 0
        tries.failed("10.0.0.1")


def test_an_ipv6_network_is_one_address() -> None:
    tries = LoginRateLimit(1, Clock())
    tries.failed("2001:db8::1")
    assert tries.wait_s("2001:db8::ffff") > 0
    assert tries.wait_s("2001:db8:0:1::1") == 0
    tries.failed("::ffff:10.0.0.1")
    assert tries.wait_s("10.0.0.1") > 0
    tries.failed("")
    assert tries.wait_s("") > 0, "missing addresses share one limit"


def test_without_a_limit_nothing_is_counted() -> None:
    tries = LoginRateLimit(0, Clock())
    for _ in range(100):
        tries.failed("10.0.0.1")
    assert tries.wait_s("10.0.0.1") == 0


def test_the_address_with_the_oldest_failure_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login_rate_limit, "ADDRESSES_MAX", 2)
    tries = LoginRateLimit(1, Clock())
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.3"):
        tries.failed(address)
    assert [tries.wait_s(f"10.0.0.{number}") > 0 for number in (1, 2, 3)] == [True, False, True]


def test_workers_together_forgive_as_much_as_one_process() -> None:
    clock = Clock()
    workers = [LoginRateLimit(2, clock, every_s=2), LoginRateLimit(2, clock, every_s=2)]
    for tries in workers:
        for _ in range(2):
            assert tries.wait_s("10.0.0.1") == 0
            tries.failed("10.0.0.1")
        assert tries.wait_s("10.0.0.1") == pytest.approx(2)
    clock.now_s += 2
    for tries in workers:
        assert tries.wait_s("10.0.0.1") == 0
        tries.failed("10.0.0.1")
        assert tries.wait_s("10.0.0.1") == pytest.approx(2)
