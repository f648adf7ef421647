"""The page with missing copies, full disks, and topics with more partitions than it reads."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, Route, expect
from tests.browsers import accessibility_faults, browser_page, needs_chromium
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

pytestmark = [needs_chromium, pytest.mark.timeout(120)]

FIGURES = {"records": 3, "end_offsets": 3, "size_bytes": 9, "idle": 0, "unavailable": 0, "under_replicated": 2}


async def changed(page: Page, address: str, change: Any) -> None:
    """Let the page receive the answers of an address as `change` returns them."""

    async def answer(route: Route) -> None:
        told = await route.fetch()
        await route.fulfill(response=told, json=change(await told.json()))

    await page.route(re.compile(address), answer)


async def test_topics_with_missing_copies_are_a_fault(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[], [], []]}

    def lacking(told: dict[str, Any]) -> dict[str, Any]:
        rates = {"records_per_s": 0, "bytes_per_s": 0}
        return told | {"topics": [topic | {"figures": FIGURES | rates} for topic in told["topics"]]}

    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await changed(page, "/v1/topics", lacking)
        await page.goto(f"{served.http}/ui/#/")
        await expect(page.get_by_text("1 topic with copies that are missing or lack records.")).to_be_visible()
        await page.goto(f"{served.http}/ui/#/topics")
        await expect(page.get_by_text("! 2 with copies missing")).to_be_visible()
        assert await accessibility_faults(page) == []


async def test_a_node_with_a_full_disk_is_a_fault(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}

    def full(told: dict[str, Any]) -> dict[str, Any]:
        return told | {"nodes": [node | {"state": "disk_full", "disk_free_bytes": 0} for node in told["nodes"]]}

    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await changed(page, "/v1/cluster", full)
        await page.goto(f"{served.http}/ui/#/")
        await expect(page.get_by_text("The disk of node node-1 is full.")).to_be_visible()
        await page.goto(f"{served.http}/ui/#/nodes")
        await expect(page.get_by_text("▲ disk full")).to_be_visible()


async def test_newest_records_of_many_partitions_come_from_the_last_appended_ones(serve: Serve, log: FakeLog) -> None:
    log.logs = {"wide": [[] for _ in range(60)]}

    def aged(told: dict[str, Any]) -> dict[str, Any]:
        states = [one | {"newest_append_ms": 1_000 + one["partition"]} for one in told["partition_states"]]
        return told | {"partition_states": states}

    async with serve(ui_interval_s=600) as served, browser_page() as page:
        records = [{"value": f"v{number}", "partition": number} for number in range(60)]
        records += [{"value": "more", "partition": 59}] * 9  # the fullest partition is not the last to be read
        async with httpx.AsyncClient(base_url=served.http, timeout=20) as http:
            assert (await http.post("/v1/topics/wide/records", json={"records": records})).is_success
        await changed(page, "/v1/topics/wide$", aged)
        await page.goto(f"{served.http}/ui/#/topic/wide?tab=records")
        told = "The newest of 50 partitions, 50 records in all. 10 other partitions with records are not read"
        await expect(page.get_by_text(re.compile(f"^{re.escape(told)}"))).to_be_visible()
        partitions = page.locator("tbody tr td:first-child")
        await expect(partitions).to_have_count(50)
        assert {int(each) for each in await partitions.all_inner_texts()} == set(range(10, 60))
