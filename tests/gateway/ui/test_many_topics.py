"""CPU time of a browser and a gateway for a page with many topics.

Both are times of threads: time in which other processes use the processors does not count.
"""

from __future__ import annotations

import time

import pytest
from playwright.async_api import expect
from tests.browsers import browser_page, needs_chromium
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

pytestmark = [needs_chromium, pytest.mark.timeout(120)]

TOPICS = 1000
PARTITIONS = 10
CPU_S_MAX = 1.0


async def test_a_thousand_topics_are_shown_within_a_second_of_cpu_time(serve: Serve, log: FakeLog) -> None:
    log.logs = {f"topic-{number:04}": [[] for _ in range(PARTITIONS)] for number in range(TOPICS)}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        began_s = time.thread_time()
        await page.goto(f"{served.http}/ui/#/topics")
        await expect(page.get_by_role("link", name="topic-0000")).to_be_visible()
        gateway_s = time.thread_time() - began_s
        told = {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}
        browser_s = told["TaskDuration"]
        print(f"browser {browser_s:.3f} s, gateway and driver {gateway_s:.3f} s")
        assert browser_s < CPU_S_MAX
        assert gateway_s < CPU_S_MAX
        await page.get_by_label("Filter topics by name").fill("0777")
        await expect(page.get_by_role("link", name="topic-0777")).to_be_visible()
        await expect(page.get_by_text("1 of 1,000")).to_be_visible()
        assert page.url.endswith("?filter=0777"), "the URL has the filter"
