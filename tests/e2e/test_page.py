"""The page `/ui` in a real browser, before three nodes and a gateway."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import Page, expect
from tests.browsers import accessibility_faults, browser_page, needs_chromium

from tidelog import Client
from tidelog_cli.up.child_processes import running
from tidelog_cli.up.local_cluster import LocalNode, prepare
from tidelog_cli.up.local_stack import LocalStack, running_stack

pytestmark = [pytest.mark.e2e, needs_chromium, pytest.mark.timeout(240)]

LONG_NUMBER = "123456789012345678901234567890.10"
SLOW_MS = 60_000


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[LocalNode]:
    monkeypatch.setenv("TIDELOG_GATEWAY_UI_INTERVAL_S", "1")
    return prepare(tmp_path / "data", nodes=3, port=0, first_port=0, management_ports=[0])


@pytest.fixture
async def stack(tmp_path: Path, nodes: list[LocalNode]) -> AsyncIterator[LocalStack]:
    async with running_stack(nodes, http_port=0, gateway_log=tmp_path / "gateway.log") as started:
        yield started


async def go(page: Page, stack: LocalStack, place: str = "") -> None:
    await page.goto(f"{stack.http_url}/ui/#/{place}")
    await expect(page.locator("main")).to_have_attribute("aria-busy", "false")


async def test_a_topic_is_created_tailed_published_to_and_searched(stack: LocalStack) -> None:
    async with browser_page() as page, httpx.AsyncClient(base_url=stack.http_url, timeout=30) as http:
        await page.goto(stack.http_url)
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert await accessibility_faults(page) == []

        await page.keyboard.press("2")
        await expect(page.get_by_text("There are no topics yet")).to_be_visible()
        await page.get_by_role("button", name="Create a topic").click()
        await page.get_by_label("Name", exact=True).fill("visits")
        await page.get_by_label("Partitions", exact=True).fill("2")
        await page.get_by_role("button", name="Create", exact=True).click()
        await expect(page.get_by_role("heading", name="visits")).to_be_visible()
        await expect(page.get_by_role("row", name=re.compile("active"))).to_have_count(2)
        assert await accessibility_faults(page) == []

        await page.get_by_role("tab", name="Live").click()
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_text("Live: waiting for records.")).to_be_visible()
        sent = [{"key": "ada", "value": "<b>first</b>"}, {"key": "bob", "value": "second", "headers": [["trace", "7"]]}]
        answer = await http.post("/v1/topics/visits/records", json={"records": sent})
        assert answer.status_code == 200
        await expect(page.get_by_role("cell", name="<b>first</b>")).to_be_visible()
        await expect(page.get_by_text("Live: 2 received.")).to_be_visible()
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("cell", name="second")).to_be_visible()

        await page.get_by_role("tab", name="Publish").click()
        await page.get_by_label("Key", exact=True).fill("ada")
        await page.get_by_label("Value is", exact=True).select_option("json")
        await page.get_by_label("Value", exact=True).fill(f'{{"long": {LONG_NUMBER}, "list": [1, 2]}}')
        await page.get_by_role("button", name="Publish").click()
        await page.get_by_role("link", name="Show it").click()
        await expect(page.get_by_role("dialog").locator(".json-number").first).to_have_text(LONG_NUMBER)
        assert await accessibility_faults(page) == []
        await page.keyboard.press("Escape")

        await page.get_by_label("From", exact=True).select_option("latest")
        await page.get_by_label("Text", exact=True).fill("TRACE 7")
        await page.get_by_role("button", name="Read", exact=True).click()
        await expect(page.get_by_text("1 found in")).to_be_visible()
        await expect(page.get_by_role("cell", name="second")).to_be_visible()
        assert await accessibility_faults(page) == []


async def test_a_group_is_moved_and_a_topic_deleted(stack: LocalStack) -> None:
    async with browser_page() as page, httpx.AsyncClient(base_url=stack.http_url, timeout=30) as http:
        async with Client(stack.bootstrap) as client:
            await client.create_topic("visits", partitions=2)
            await client.producer("visits").send_many([b"x"] * 3)
            offsets = await client.list_offsets("visits", "latest")
            await client.commit("readers", "visits", {at: told.offset for at, told in offsets.items()})
            await go(page, stack, "group/readers")
            await expect(page.get_by_text("0 offsets", exact=True)).to_be_visible()
            await client.producer("visits").send_many([b"x"] * 10)
        await expect(page.get_by_text("10 offsets", exact=True)).to_be_visible()
        assert await accessibility_faults(page) == []
        await page.get_by_role("button", name="Move positions…").click()
        await page.get_by_label("To", exact=True).select_option("earliest")
        await page.get_by_role("button", name="Try it (nothing changes)").click()
        await expect(page.get_by_text("would be 13 offsets behind")).to_be_visible()
        assert (await http.get("/v1/groups/readers/lag")).json()["lag"] == 10
        await page.get_by_role("button", name="Move", exact=True).click()
        await expect(page.get_by_text("13 offsets", exact=True)).to_be_visible()
        assert (await http.get("/v1/groups/readers/lag")).json()["lag"] == 13

        await go(page, stack, "topic/visits?tab=groups")
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name="readers"))
        await expect(row.get_by_role("cell", name="13", exact=True)).to_be_visible()
        assert await accessibility_faults(page) == []

        await go(page, stack, "topic/visits?tab=settings")
        await page.get_by_role("button", name="Delete the topic…").click()
        await page.get_by_label("Type the topic's name").fill("visit")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await expect(page.get_by_text("the name does not match")).to_be_visible()
        await page.get_by_label("Type the topic's name").fill("visits")
        await page.get_by_role("button", name="Delete", exact=True).click()
        await expect(page.get_by_text("There are no topics yet")).to_be_visible()


async def test_the_overview_shows_that_a_node_fails_and_recovers(stack: LocalStack, nodes: list[LocalNode]) -> None:
    async with browser_page(color_scheme="dark", width=360, height=740) as page:
        async with Client(stack.bootstrap) as client:
            await client.create_topic("visits", partitions=2, replication_factor=3)
        await go(page, stack)
        await expect(page.get_by_text("No faults are known")).to_be_visible()
        os.kill(stack.nodes[2].process.pid, signal.SIGKILL)
        await stack.nodes[2].process.wait()
        await expect(page.get_by_text("Node node3 does not answer.")).to_be_visible(timeout=SLOW_MS)
        assert await accessibility_faults(page) == []
        await go(page, stack, "nodes")
        await expect(page.get_by_text("▲ ")).to_have_count(1)
        await go(page, stack, "topic/visits")
        await expect(page.get_by_text("2 partitions with a missing copy: start node3")).to_be_visible()
        await expect(page.get_by_role("cell", name="missing: node dead")).to_have_count(2)
        assert await accessibility_faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360, "nothing is wider than a phone"
        async with running("node node3", nodes[2].command):
            await go(page, stack)
            await expect(page.get_by_text("No faults are known")).to_be_visible(timeout=SLOW_MS)
            await go(page, stack, "topic/visits")
            await expect(page.get_by_role("row", name=re.compile("active"))).to_have_count(2)
            await expect(page.get_by_text("missing")).to_have_count(0)
