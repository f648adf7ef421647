"""Signing in on the page, in a real browser, at a gateway with authentication."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.broker.keyed import ADMIN
from tests.browsers import accessibility_faults, browser_page, needs_chromium
from tests.gateway.secured import Secured, secured

from tidelog.security import AccessRule
from tidelog.security.quotas import Quota

pytestmark = [needs_chromium, pytest.mark.timeout(120)]


async def sign_in(page: Page, its: Secured, key: str) -> None:
    await page.goto(f"http://127.0.0.1:{its.port}/ui/#/topics")
    await page.get_by_label("API key or token").fill(key)
    await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()


async def test_a_wrong_key_is_refused_and_a_valid_one_shows_the_visible_objects(tmp_path: Path) -> None:
    async with secured(tmp_path, ui_interval_s=1) as its, browser_page() as page:
        await its.admin.create_topic("seen")
        await its.admin.create_topic("hidden")
        key = await its.key_of("ada", (("consume",), "topic", "seen"))
        await sign_in(page, its, key[:-3] + "aaa")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
        assert await accessibility_faults(page) == []
        await page.get_by_label("API key or token").fill(key)
        await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("link", name="seen")).to_be_visible()
        await expect(page.get_by_text("hidden")).to_have_count(0)
        await expect(page.get_by_role("button", name="ada · sign out")).to_be_visible()
        stored = await page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        assert stored == [0, 1, ""], "the key is stored for this tab only"

        await page.get_by_role("link", name="seen").click()
        await page.get_by_role("tab", name="Publish").click()
        await expect(page.get_by_role("button", name="Publish")).to_be_disabled()
        await expect(page.get_by_text("tidelog acl grant ada produce topic:seen")).to_be_visible()
        await page.get_by_role("link", name="Access").click()
        await expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
        await page.get_by_role("link", name="Nodes").click()
        await expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()
        await page.get_by_role("button", name="sign out").click()
        await expect(page.get_by_role("dialog")).to_be_visible()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_sections_that_are_not_permitted_say_so(tmp_path: Path) -> None:
    async with secured(tmp_path, ui_interval_s=1) as its, browser_page() as page:
        await its.admin.create_topic("seen", partitions=1)
        await its.admin.producer("seen").send(b"x")
        await its.admin.commit("readers", "seen", {0: 1})
        key = await its.key_of("ada", (("consume",), "topic", "seen"))
        await sign_in(page, its, key)
        await page.get_by_role("link", name="Overview").click()
        await expect(page.get_by_text("Nodes are not checked: 'ada' has no permission")).to_be_visible()
        await expect(page.get_by_text("No faults are known")).to_have_count(0)
        await expect(page.get_by_role("heading", name="Charts are not shown")).to_be_visible()
        await expect(page.get_by_role("figure")).to_have_count(0)
        await expect(page.get_by_role("link", name=re.compile("^Nodes . not permitted"))).to_be_visible()
        await expect(page.get_by_role("link", name="Groups 0 visible to you, of consumers")).to_be_visible()
        assert await accessibility_faults(page) == []
        await page.get_by_role("navigation", name="Sections").get_by_role("link", name="Groups").click()
        await expect(page.get_by_text("There are no groups that you may see")).to_be_visible()
        await page.get_by_role("navigation", name="Sections").get_by_role("link", name="Topics").click()
        await page.get_by_role("button", name="Create a topic").click()
        await page.get_by_label("Name", exact=True).fill("mine")
        await page.get_by_label("Name", exact=True).blur()
        await expect(page.get_by_role("dialog").get_by_text("tidelog acl grant ada create topic:mine")).to_be_visible()
        assert await accessibility_faults(page) == []
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="seen").click()
        await page.get_by_role("tab", name="Settings").click()
        await expect(page.get_by_text("retention_ms", exact=True)).to_be_visible()
        for button, operation in (("Change…", "alter"), ("Delete the topic…", "delete")):
            await expect(page.get_by_role("button", name=button)).to_be_disabled()
            await expect(page.get_by_text(f"tidelog acl grant ada {operation} topic:seen")).to_be_visible()
        assert await accessibility_faults(page) == []


async def test_actions_on_a_group_need_their_permissions(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page() as page:
        await its.admin.create_topic("seen", partitions=1)
        await its.admin.producer("seen").send(b"x")
        await its.admin.commit("readers", "seen", {0: 1})
        key = await its.key_of("ada", (("group",), "group", "readers"), (("describe",), "cluster", ""))
        await sign_in(page, its, key)
        await page.get_by_role("navigation", name="Sections").get_by_role("link", name="Groups").click()
        await page.get_by_role("link", name="readers").click()
        await expect(page.get_by_role("button", name="Delete…")).to_be_disabled()
        await expect(page.get_by_text("tidelog acl grant ada delete group:readers")).to_be_visible()
        await expect(page.get_by_role("button", name="Move positions…")).to_be_enabled()
        await page.get_by_role("navigation", name="Sections").get_by_role("link", name="Nodes").click()
        await expect(page.get_by_role("button", name="Drain…")).to_be_disabled()
        await expect(page.get_by_text("tidelog acl grant ada cluster cluster")).to_be_visible()
        assert await accessibility_faults(page) == []


async def test_nothing_but_the_caller_is_requested_before_the_sign_in(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page() as page:
        refused: list[str] = []
        page.on("response", lambda answer: refused.append(answer.url) if answer.status == 401 else None)
        await page.goto(f"http://127.0.0.1:{its.port}/ui/")
        await expect(page.get_by_role("dialog")).to_be_visible()
        assert refused == [f"http://127.0.0.1:{its.port}/v1/me"]
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        assert await accessibility_faults(page) == []
        await page.locator("main").get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("dialog")).to_be_visible()


async def test_an_administrator_creates_a_key_and_a_rule(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page() as page:
        await sign_in(page, its, ADMIN)
        await page.get_by_role("link", name="Access").click()
        await page.get_by_role("button", name="Create a key").click()
        await page.get_by_label("Principal").fill("eve")
        await page.get_by_role("button", name="Create", exact=True).click()
        made = await page.get_by_label("The key", exact=True).input_value()
        assert made.startswith("tlk_")
        assert await accessibility_faults(page) == []
        await page.get_by_role("button", name="Close", exact=True).click()
        await page.get_by_role("button", name="Add a rule").click()
        await page.get_by_label("Who").fill("eve")
        await page.get_by_label("Named").fill("web-*")
        await page.get_by_role("button", name="Add", exact=True).click()
        await expect(page.get_by_role("cell", name="topic:web-*")).to_be_visible()
        (rule,) = [rule for rule in await its.admin.security.rules() if rule.principal == "eve"]
        assert (rule.operations, rule.resource, rule.name, rule.prefix) == (("consume",), "topic", "web-", True)


async def test_a_read_only_page_offers_no_changes(tmp_path: Path) -> None:
    async with secured(tmp_path, ui="read_only") as its, browser_page() as page:
        await its.admin.create_topic("t")
        await sign_in(page, its, ADMIN)
        await expect(page.get_by_text("read-only")).to_be_visible()
        await expect(page.get_by_role("link", name="t", exact=True)).to_be_visible()
        await expect(page.get_by_role("button", name="Create a topic")).to_have_count(0)
        await page.get_by_role("link", name="t", exact=True).click()
        await expect(page.get_by_role("tab", name="Records")).to_be_visible()
        await expect(page.get_by_role("tab", name="Publish")).to_have_count(0)
        await page.get_by_role("tab", name="Settings").click()
        await expect(page.get_by_text("retention_ms", exact=True)).to_be_visible()
        await expect(page.get_by_role("button", name="Change…")).to_have_count(0)


async def test_an_administrator_sets_a_quota_and_sees_its_usage(tmp_path: Path) -> None:
    async with secured(tmp_path) as its, browser_page() as page:
        await its.key_of("eve")
        await sign_in(page, its, ADMIN)
        await page.get_by_role("link", name="Access").click()
        await page.get_by_role("button", name="Set a quota").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("Who").fill("address:10.0.0.0/8")
        await dialog.get_by_label("Connections").fill("20")
        await dialog.get_by_label("Written").fill("1048576")
        await dialog.get_by_label("Groups").fill("7")
        await dialog.get_by_role("button", name="Set").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("they are counted by principal")
        await dialog.get_by_label("Groups").fill("")
        await dialog.get_by_label("Requests").fill("unlimited")
        assert await accessibility_faults(page) == []
        await dialog.get_by_role("button", name="Set").click()
        quotas = page.get_by_role("table", name="Quotas")
        await expect(quotas.get_by_role("cell", name="1 MiB/s")).to_be_visible()
        expected = Quota(produce_bytes=1 << 20, connections=20, requests=math.inf)
        assert await its.admin.security.quotas() == {"address:10.0.0.0/8": expected}
        await page.get_by_role("button", name="Change the quota of address:10.0.0.0/8").click()
        await dialog.get_by_label("Connections").fill("0")
        await dialog.get_by_label("Written").fill("7")
        await dialog.get_by_role("button", name="Set").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("4")
        await dialog.get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Remove the quota of address:10.0.0.0/8").click()
        await dialog.get_by_role("button", name="Remove").click()
        await expect(page.get_by_text("There are no quotas")).to_be_visible()


async def test_a_test_of_rules_shows_the_rule_that_decides(tmp_path: Path) -> None:
    async with secured(tmp_path, ui="read_only") as its, browser_page() as page:
        rule = await its.admin.security.grant(AccessRule("eve", ("consume",), "topic", "web-", prefix=True))
        await sign_in(page, its, ADMIN)
        await page.get_by_role("link", name="Access").click()
        await expect(page.get_by_role("button", name="Set a quota")).to_have_count(0)
        await page.get_by_role("button", name="Test a rule").click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_label("May").fill("eve")
        await dialog.get_by_label("Named").fill("web-a")
        await dialog.get_by_role("button", name="Test").click()
        verdict = dialog.get_by_role("status")
        await expect(verdict).to_contain_text("✓ allowed")
        await expect(verdict).to_contain_text(rule.rule_id)
        await expect(verdict).to_contain_text("Rule: eve may consume on topic:web-*")
        await dialog.get_by_label("Do", exact=True).select_option("delete")
        await dialog.get_by_role("button", name="Test").click()
        await expect(verdict).to_contain_text("✕ not allowed")
        assert await accessibility_faults(page) == []
