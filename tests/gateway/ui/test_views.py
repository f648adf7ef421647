"""Views of the page with the permissions of an administrator, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, WebSocketRoute, expect
from tests.broker.keyed import ADMIN
from tests.browsers import accessibility_faults, browser_page, needs_chromium
from tests.gateway.secured import Secured, secured

from tidelog.model import TopicSettings
from tidelog.security import AccessRule

pytestmark = [needs_chromium, pytest.mark.timeout(120)]


async def opened(page: Page, its: Secured, place: str) -> None:
    await page.goto(f"http://127.0.0.1:{its.port}/ui/#/{place}")
    await page.get_by_label("API key or token").fill(ADMIN)
    await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_the_list_of_groups_shows_lags_of_a_bounded_number_of_groups(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page() as page:
        await its.admin.create_topic("t", partitions=1)
        await its.admin.producer("t").send_many([b"x"] * 3)
        for number in range(22):
            await its.admin.commit(f"group-{number:02}", "t", {0: number % 2})
        lags: list[str] = []
        page.on("request", lambda request: lags.append(request.url) if request.url.endswith("/lag") else None)
        await page.clock.set_fixed_time(0)  # a lag is requested again when it is 30 s old
        await opened(page, its, "groups")
        await expect(page.get_by_role("columnheader", name="Lag (offsets)")).to_be_visible()
        for name, lag in (("group-00", "3"), ("group-19", "2"), ("group-20", "\N{EN DASH}")):
            row = page.get_by_role("row", name=name)
            await expect(row.get_by_role("cell").nth(3)).to_have_text(lag)
        assert len(lags) == 20
        await page.get_by_label("Filter groups by name").fill("group-21")
        await expect(page.get_by_role("row", name="group-21").get_by_role("cell").nth(3)).to_have_text("2")
        assert await accessibility_faults(page) == []


async def test_tables_fit_and_their_action_columns_have_a_header(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page(width=1280) as page:
        await opened(page, its, "nodes")
        await expect(page.get_by_role("button", name="Drain…")).to_be_visible()
        box = page.get_by_role("region", name="Nodes")
        assert await box.evaluate("box => box.scrollWidth <= box.clientWidth"), "the table of nodes is cut"
        colors = "row => [...row.children].map(cell => getComputedStyle(cell).backgroundColor)"
        assert len(set(await page.locator("thead tr").evaluate(colors))) == 1
        await expect(page.get_by_text(re.compile(r"^Tidelog \d"))).to_be_visible()
        await expect(page.get_by_role("link", name="HTTP API")).to_have_attribute("href", "../docs")


async def test_records_are_shown_one_after_the_other(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page(width=390, height=800, color_scheme="dark") as page:
        await its.admin.create_topic("t", partitions=1)
        await its.admin.producer("t").send_many([b'{"a": {"b": 1, "c": 2}}', b"second"])
        await opened(page, its, "topic/t?tab=records")
        await page.get_by_role("button", name="Show the record at offset 1 ").click()
        dialog = page.get_by_role("dialog", name="offset 1")
        await expect(dialog.get_by_role("button", name="Row above")).to_be_disabled()
        await dialog.get_by_role("button", name="Row below").click()
        await expect(page.get_by_role("dialog")).to_have_count(1)
        await expect(page.get_by_role("dialog", name="offset 0").get_by_text("2 members")).to_be_visible()
        await expect(page.get_by_role("button", name="Row below")).to_be_disabled()
        assert await accessibility_faults(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        await page.keyboard.press("Escape")
        await page.get_by_role("tab", name="Settings").click()
        await expect(page.get_by_text("100 ms", exact=True)).to_be_visible()
        await expect(page.get_by_text("0 (off)")).to_have_count(2)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390


async def test_a_lost_connection_of_live_is_reported_in_plain_words(tmp_path: Path) -> None:
    async def lose(socket: WebSocketRoute) -> None:
        await socket.close()

    async with secured(tmp_path) as its, browser_page() as page:
        await its.admin.create_topic("t", partitions=1)
        await page.route_web_socket(re.compile("/v1/ws"), lose)
        await opened(page, its, "topic/t?tab=live")
        await page.get_by_role("button", name="Start").click()
        await expect(page.get_by_role("status").get_by_text("Connection lost, trying again…")).to_be_visible()
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_text("Stopped. 0 received.")).to_be_visible()


async def test_the_page_says_why_topics_are_not_sampled(tmp_path: Path) -> None:
    async with secured(tmp_path, ui_interval_s=1) as its, browser_page() as page:
        await its.admin.create_topic("t", partitions=1)
        await opened(page, its, "")  # the gateway's own key may only impersonate
        remedy = page.get_by_text("tidelog acl grant GATEWAY describe 'topic:*'")
        await expect(remedy).to_be_visible()
        await page.goto(f"http://127.0.0.1:{its.port}/ui/#/topics")
        await expect(page.get_by_text("not sampled", exact=True)).to_be_visible()
        await expect(remedy).to_be_visible()
        await its.admin.security.grant(AccessRule("gate", ("describe",), "cluster"))
        await its.admin.security.grant(AccessRule("gate", ("describe",), "topic", prefix=True))
        await expect(page.get_by_text("✓ ok")).to_be_visible()
        await expect(remedy).to_have_count(0)


async def test_a_quota_without_limits_is_refused_in_the_words_of_the_page(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page() as page:
        await opened(page, its, "access")
        await page.get_by_role("button", name="Set a quota").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Who").fill("ann")
        await dialog.get_by_role("button", name="Set").click()
        await expect(dialog.get_by_role("alert")).to_have_text(re.compile("^Enter at least one limit"))


async def test_topics_and_partitions_show_their_engine_and_file_model(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page(width=1280) as page:
        for name, settings in (
            ("own", TopicSettings()),
            ("small", TopicSettings(file_model="shared")),
            ("quick", TopicSettings(engine="memory", flush="never")),
            ("later", TopicSettings(engine="memory", flush="async")),
        ):
            await its.admin.create_topic(name, partitions=1, **settings)
            await its.admin.producer(name).send(b"x")
        await opened(page, its, "topics")
        storages = {
            "own": "segment",
            "small": "segment, shared files",
            "quick": "memory",
            "later": "memory, written later",
        }
        for name, text in storages.items():
            row = page.get_by_role("row", name=name)
            await expect(row.get_by_role("cell").nth(6)).to_have_text(text)
        assert await accessibility_faults(page) == []
        for name, text in storages.items():
            await page.goto(f"http://127.0.0.1:{its.port}/ui/#/topic/{name}")
            await expect(page.get_by_role("heading", name=name)).to_be_visible()
            await expect(page.locator("dl.facts div", has_text="Storage").locator("dd")).to_have_text(text)
            cells = page.get_by_role("region", name="Partitions").get_by_role("row").nth(1).get_by_role("cell")
            await expect(cells.nth(7)).to_have_text(text)


async def test_each_change_of_the_engine_is_shown_with_its_epochs(tmp_path: Path) -> None:
    stored = [{"first": 1, "last": 2, "engine": "segment"}, {"first": 3, "last": 3, "engine": "rocksdb"}]

    async def with_changes(route: Route) -> None:
        answer = await route.fetch()
        told = await answer.json()
        assert told["partition_states"][0]["stored"] == [{"first": 0, "last": 0, "engine": "segment"}]
        states = [one | {"stored": stored} for one in told["partition_states"]]
        await route.fulfill(response=answer, json=told | {"partition_states": states})

    async with secured(tmp_path) as its, browser_page() as page:
        await its.admin.create_topic("t", partitions=1)
        await its.admin.producer("t").send(b"x")
        await page.route(re.compile("/v1/topics/t$"), with_changes)
        await opened(page, its, "topic/t")
        await expect(page.get_by_text("epochs 1 to 2: segment; epoch 3: rocksdb")).to_be_visible()
