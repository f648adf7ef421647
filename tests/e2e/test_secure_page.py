"""The page `/ui` of a secure cluster: users with passwords, access rules, quotas, and a page without changes.

Three nodes and a gateway run as processes, with TLS and authentication, as `tidelog up --nodes 3 --secure` starts them.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from tests.browsers import accessibility_faults, browser_page, needs_chromium

from tidelog import Client
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_cli.up.local_cluster import prepare
from tidelog_cli.up.local_security import LocalSecurity, secure
from tidelog_cli.up.local_stack import LocalStack, running_stack

pytestmark = [pytest.mark.e2e, needs_chromium, pytest.mark.timeout(240)]

PASSWORD = "correct horse battery"
CHANGES = re.compile(r"(Add|Set|Create|Remove|Revoke|Change|Drain|Delete|Take back|Publish|Move)\b")


@dataclass(frozen=True, slots=True)
class Secure:
    """A secure cluster with a gateway, and an administrator's client."""

    stack: LocalStack
    security: LocalSecurity
    admin: Client
    key: str


@pytest.fixture
async def its(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> AsyncIterator[Secure]:
    """Run the cluster; the parameter is the gateway's setting `ui`."""
    monkeypatch.setenv("TIDELOG_GATEWAY_UI", getattr(request, "param", "on"))
    data = tmp_path / "data"
    nodes = prepare(data, nodes=3, port=0, first_port=0, management_ports=[0])
    security = secure(data, [one.node_id for one in nodes])
    nodes = [replace(one, command=(*one.command, *security.config(one.node_id))) for one in nodes]
    async with running_stack(nodes, http_port=0, gateway_log=tmp_path / "gateway.log", security=security) as stack:
        await security.let_gateway_ask(stack.bootstrap)
        async with Client(stack.bootstrap.split(","), **security.client_options(stack.bootstrap)) as admin:
            yield Secure(stack, security, admin, security.admin_key.read_text().strip())


async def enter(page: Page, *, key: str = "", user: str = "", password: str = "") -> None:
    """Fill in the dialog of signing in, and send it."""
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("API key or token").fill(key)
    await dialog.get_by_label("User").fill(user)
    await dialog.get_by_label("Password").fill(password)
    await dialog.get_by_role("button", name="Sign in").click()


async def test_a_user_with_a_password_sees_what_an_administrator_permits(its: Secure) -> None:
    url = its.stack.http_url
    await its.admin.create_topic("visits", partitions=1)
    await its.admin.producer("visits").send(b"first")
    await its.admin.security.create_user("ann", PASSWORD)
    async with browser_page(any_certificate=True) as page, browser_page(any_certificate=True) as other:
        await page.goto(f"{url}/ui/#/topics")
        alert = page.get_by_role("dialog").get_by_role("alert")
        for user, password in (("ann", "wrong horse battery"), ("nobody", PASSWORD), ("ann", "")):
            await enter(page, user=user, password=password)
            await expect(alert).to_contain_text("password")
            assert await page.evaluate("sessionStorage.length") == 0
        assert await accessibility_faults(page) == []
        await enter(page, user="ann", password=PASSWORD)
        await expect(page.get_by_role("button", name="ann · sign out")).to_be_visible()
        await expect(page.get_by_text("There are no topics that you may see")).to_be_visible()
        for section in ("Nodes", "Access"):
            await page.get_by_role("link", name=section).click()
            await expect(page.get_by_role("heading", name="Not allowed")).to_be_visible()

        await other.goto(f"{url}/ui/#/access")
        await enter(other, key=its.key)
        await other.get_by_role("button", name="Add a rule").click()
        dialog = other.get_by_role("dialog")
        await dialog.get_by_label("Who").fill("ann")
        await dialog.get_by_label("Named").fill("visits")
        await dialog.get_by_role("button", name="Add", exact=True).click()
        rule = other.get_by_role("table", name="Rules").get_by_role("row").filter(has_text="topic:visits")
        await expect(rule).to_be_visible()
        async with asyncio.timeout(60):
            while not await may_read(page, url):  # noqa: ASYNC110 - nodes apply a rule within a second
                await asyncio.sleep(0.5)
        await rule.get_by_role("button", name="Remove").click()
        await dialog.get_by_role("button", name="Remove").click()
        await expect(rule).to_have_count(0)
        assert not [each for each in await its.admin.security.rules() if each.principal == "ann"]
        async with asyncio.timeout(60):
            while await may_read(page, url):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.5)

        await page.get_by_role("button", name="ann · sign out").click()
        await expect(page.get_by_role("dialog").get_by_label("User")).to_be_visible()
        assert await page.evaluate("sessionStorage.length") == 0


async def may_read(page: Page, url: str) -> bool:
    """Open the topic's records; return whether the record is shown, or else the reason."""
    await page.goto("about:blank")  # else the former view would still be shown
    await page.goto(f"{url}/ui/#/topic/visits?tab=records")
    shown = page.get_by_role("cell", name="first")
    refused = page.get_by_role("heading", name="Not allowed").or_(page.get_by_role("heading", name="This cannot be"))
    # The node refuses the records when a rule changes after it has described the topic.
    unread = page.get_by_role("status").filter(has_text="has no permission")
    await expect(shown.or_(refused).or_(unread).first).to_be_visible()
    return await shown.is_visible()


async def test_an_administrator_sets_changes_and_removes_a_quota(its: Secure) -> None:
    async with browser_page(any_certificate=True) as page:
        await page.goto(f"{its.stack.http_url}/ui/#/access")
        await enter(page, key=its.key)
        dialog = page.get_by_role("dialog")
        await page.get_by_role("button", name="Set a quota").click()
        await dialog.get_by_label("Who").fill("role:batch")
        await dialog.get_by_label("Written").fill("1048576")
        await dialog.get_by_label("Connections").fill("unlimited")
        await dialog.get_by_role("button", name="Set").click()
        row = page.get_by_role("table", name="Quotas").get_by_role("row").filter(has_text="role:batch")
        await expect(row.get_by_role("cell", name="1 MiB/s")).to_be_visible()
        assert await its.admin.security.quotas() == {"role:batch": Quota(produce_bytes=1 << 20, connections=math.inf)}

        await row.get_by_role("button", name="Change").click()
        await expect(dialog.get_by_label("Who")).to_have_attribute("readonly", "")
        await expect(dialog.get_by_label("Written")).to_have_value("1048576")
        await expect(dialog.get_by_label("Connections")).to_have_value("unlimited")
        await dialog.get_by_label("Written").fill("2097152")
        await dialog.get_by_label("Connections").fill("")
        await dialog.get_by_label("Topics").fill("3")
        await dialog.get_by_role("button", name="Set").click()
        await expect(row.get_by_role("cell", name="2 MiB/s")).to_be_visible()
        assert await its.admin.security.quotas() == {"role:batch": Quota(produce_bytes=2 << 20, topics=3)}
        assert await accessibility_faults(page) == []

        await row.get_by_role("button", name="Remove").click()
        await dialog.get_by_role("button", name="Remove").click()
        await expect(page.get_by_text("There are no quotas")).to_be_visible()
        assert await its.admin.security.quotas() == {}


@pytest.mark.parametrize("its", ["read_only"], indirect=True)
async def test_a_read_only_page_offers_an_administrator_no_change(its: Secure) -> None:
    await its.admin.create_topic("visits", partitions=1)
    await its.admin.security.grant(AccessRule("ann", ("consume",), "topic", "visits"))
    await its.admin.security.set_quota("ann", Quota(connections=9))
    async with browser_page(any_certificate=True) as page:
        await page.goto(f"{its.stack.http_url}/ui/#/access")
        await enter(page, key=its.key)
        await expect(page.get_by_text("read-only")).to_be_visible()
        await expect(page.get_by_role("cell", name="topic:visits")).to_be_visible()
        await expect(page.get_by_role("table", name="Quotas").get_by_role("cell", name="9")).to_be_visible()
        sections = {"access": "Access", "nodes": "Nodes", "topics": "Topics", "groups": "Groups"}
        for section, heading in (sections | {"topic/visits?tab=settings": "visits", "topic/visits": "visits"}).items():
            await page.goto("about:blank")  # only the hash of the address changes: the former view would still be shown
            await page.goto(f"{its.stack.http_url}/ui/#/{section}")
            await expect(page.locator("main")).to_have_attribute("aria-busy", "false")
            await expect(page.get_by_role("heading", level=1)).to_have_text(heading)
            buttons = await page.locator("main").get_by_role("button").all_inner_texts()
            assert not [each for each in buttons if CHANGES.match(each)], section
