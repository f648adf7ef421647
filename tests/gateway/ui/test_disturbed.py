"""The page while a part of the cluster does not answer, while it is refreshed, and at unusual addresses."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, Route, expect
from tests.browsers import accessibility_faults, browser_page, needs_chromium
from tests.gateway.conftest import Serve
from tests.gateway.fake_log import FakeLog

pytestmark = [needs_chromium, pytest.mark.timeout(120)]

QUORUM_LOST = '{"code": "quorum_lost", "detail": "__offsets/0: 1 of 3 replicas are alive"}'
SELECT_A_ROW_AND_MARK = """note => {
  getSelection().selectAllChildren(document.querySelector("tbody tr"));
  note.textContent = "the refresh has not ended";
}"""
"""The view of topics writes this note after the rows, at the end of each refresh."""


async def unavailable(route: Route) -> None:
    await route.fulfill(status=503, content_type="application/problem+json", body=QUORUM_LOST)


async def publish(page: Page, url: str, topic: str, records: list[dict[str, object]]) -> None:
    answer = await page.request.post(f"{url}/v1/topics/{topic}/records", data={"records": records})
    assert answer.ok, await answer.text()


async def test_overview_is_shown_while_groups_and_their_coordinators_do_not_answer(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await page.route(re.compile("/v1/groups"), unavailable)
        await page.goto(f"{served.http}/ui/#/")
        await expect(page.get_by_role("link", name=re.compile("^Topics 1"))).to_be_visible()
        groups = page.get_by_role("link", name=re.compile("not known: no answer"))
        await expect(groups).to_have_attribute("title", re.compile("1 of 3 replicas"))
        assert await accessibility_faults(page) == []


async def test_view_that_could_not_be_shown_is_shown_when_the_gateway_answers_again(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        topics = re.compile("/v1/topics")
        await page.route(topics, unavailable)
        await page.goto(f"{served.http}/ui/#/topics")
        await expect(page.get_by_role("heading", name="This cannot be shown")).to_be_visible()
        await page.unroute(topics)
        await expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()
        await page.route(topics, unavailable)
        note = page.get_by_role("note")
        await expect(note).to_have_text("Not up to date. __offsets/0: 1 of 3 replicas are alive")
        await expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()
        assert await accessibility_faults(page) == []
        await page.unroute(topics)
        await expect(note).to_be_hidden()


async def test_refreshed_rows_keep_focus_and_selected_text(serve: Serve, log: FakeLog) -> None:
    log.logs = {"a": [[]], "b": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await page.goto(f"{served.http}/ui/#/topics")
        link = page.get_by_role("link", name="b", exact=True)
        await link.focus()
        await page.evaluate("window.former = document.activeElement")
        await page.keyboard.press("r")
        await page.wait_for_function("() => !window.former.isConnected")
        await expect(link).to_be_focused()
        note = page.get_by_text(re.compile("Offsets count stored offsets"))
        await note.evaluate(SELECT_A_ROW_AND_MARK)
        await page.keyboard.press("r")
        await expect(page.get_by_text("the refresh has not ended")).to_have_count(0)
        await expect(note).to_be_visible()
        assert (await page.evaluate("getSelection().toString()")).startswith("a")


async def test_unknown_and_malformed_addresses_are_answered(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        for place in ("nowhere", "constructor"):
            await page.goto(f"{served.http}/ui/#/{place}")
            await expect(page.get_by_role("heading", name="Unknown address")).to_be_visible()
            await expect(page.get_by_role("main")).to_have_attribute("aria-busy", "false")
        await page.goto(f"{served.http}/ui/#/topic/%")
        await expect(page.get_by_role("alert")).to_be_visible()
        await page.get_by_role("link", name="Topics").click()
        await expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()


async def test_missing_values_are_sorted_last_in_both_directions(serve: Serve, log: FakeLog) -> None:
    log.logs = {"a": [[]], "b": [[]], "c": [[]]}

    async def partly_sampled(route: Route) -> None:
        rows = [("a", {"records": 3}), ("b", None), ("c", {"records": 5})]
        topics = [{"name": name, "partitions": 1, "figures": figures} for name, figures in rows]
        await route.fulfill(json={"topics": topics, "next_cursor": None})

    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await page.route(re.compile("/v1/topics"), partly_sampled)
        await page.goto(f"{served.http}/ui/#/topics")
        await expect(page.get_by_role("link", name="b", exact=True)).to_be_visible()
        for order in (["c", "a", "b"], ["a", "c", "b"]):
            await page.get_by_role("columnheader", name="Offsets").first.get_by_role("button").click()
            await expect(page.locator("tbody th")).to_have_text(order)


async def test_newest_records_come_from_the_partitions_that_have_records(serve: Serve, log: FakeLog) -> None:
    log.logs = {"skew": [[] for _ in range(20)]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        records = [{"value": f"v{number}", "partition": 7} for number in range(60)]
        await publish(page, served.http, "skew", [*records, {"value": "other", "partition": 3}])
        await page.goto(f"{served.http}/ui/#/topic/skew?tab=records")
        await expect(page.get_by_text("The newest of 2 partitions, 50 records in all.")).to_be_visible()
        await expect(page.locator("tbody tr")).to_have_count(50)


async def test_one_partition_that_cannot_be_read_does_not_hide_the_others(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[], []]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await publish(page, served.http, "t", [{"value": "seen", "partition": 0}, {"value": "", "partition": 1}])
        await page.route(re.compile("/v1/topics/t/offsets"), unavailable)
        await page.route(re.compile("/v1/topics/t/partitions/1/"), unavailable)
        await page.goto(f"{served.http}/ui/#/topic/t?tab=records")
        await expect(page.get_by_role("cell", name="seen")).to_be_visible()
        await expect(page.get_by_text("1 partition could not be read; partition 1: ")).to_be_visible()


async def test_charts_keep_the_proportions_of_their_text_on_a_phone(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page(width=390, height=800) as page:
        await page.goto(f"{served.http}/ui/#/topic/t")
        plot = page.locator("svg.plot").first
        await expect(plot).to_be_visible()
        scale = "plot => plot.viewBox.baseVal.width / plot.getBoundingClientRect().width"
        is_proportional = f"() => Math.abs(({scale})(document.querySelector('svg.plot')) - 1) < 0.02"
        await page.wait_for_function(is_proportional)
        await page.get_by_role("tab", name="Settings").click()
        await expect(page.get_by_role("tab", name="Settings", selected=True)).to_be_visible()
        bar = page.get_by_role("tablist")
        assert await bar.evaluate("bar => bar.scrollWidth <= bar.clientWidth"), "a tab is out of sight"


async def test_characters_that_change_the_direction_of_text_are_shown_as_escapes(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await publish(page, served.http, "t", [{"value": '{"file": "\N{RIGHT-TO-LEFT OVERRIDE}txt.exe"}'}])
        await page.goto(f"{served.http}/ui/#/topic/t?tab=records&partition=0&offset=0&one=1")
        dialog = page.get_by_role("dialog")
        await expect(dialog.get_by_text(r'"\u202etxt.exe"')).to_be_visible()


async def test_sign_in_dialog_that_is_closed_does_not_open_again(serve: Serve, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with serve(ui_interval_s=600) as served, browser_page() as page:
        await page.goto(f"{served.http}/ui/#/topics")
        await expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()
        asked: list[str] = []

        async def refuse(route: Route) -> None:
            asked.append(route.request.url)
            await route.fulfill(status=401, json={"code": "unauthenticated", "detail": "the key is revoked"})

        await page.route(re.compile("/v1/"), refuse)
        await page.keyboard.press("r")
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        asked.clear()
        await asyncio.sleep(6)  # longer than the interval of refreshes
        assert asked == []
        await expect(page.get_by_role("dialog")).to_have_count(0)
