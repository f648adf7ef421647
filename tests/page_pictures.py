"""Take the pictures of `docs/page.md`: `python -m tests.page_pictures`. It needs Chromium, and takes two minutes.

They show records that this program publishes to three nodes of its own, and a group that reads more slowly than it
publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from pathlib import Path
from typing import Final

from playwright.async_api import Page, expect
from tests.broker.keyed import ADMIN
from tests.browsers import browser_page
from tests.gateway.secured import secured

from tidelog import Client
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_cli.up.local_cluster import prepare
from tidelog_cli.up.local_stack import LocalStack, running_stack

IMAGES: Final = Path(__file__).parents[1] / "docs" / "img"
SECONDS: Final = 70
TOPICS: Final = {"orders": 6, "payments": 3, "visits": 6, "web-errors": 1}
WORDS: Final = ("ada", "bob", "eve", "joe", "kim", "lea", "max", "zoe")


async def main() -> None:
    """Start the nodes, publish for a while, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = prepare(Path(folder) / "data", nodes=3, port=0, first_port=0, management_ports=[0])
        async with (
            running_stack(nodes, http_port=0, gateway_log=Path(folder) / "gateway.log") as stack,
            Client(stack.bootstrap) as client,
        ):
            for name, partitions in TOPICS.items():
                await client.create_topic(name, partitions=partitions, retention_ms=7 * 86_400_000)
            await asyncio.gather(publish(client), read(client))
            await pictures(stack)
    await access_picture()


async def publish(client: Client) -> None:
    """Publish at a rate that goes up and down."""
    chance = random.Random(1)  # no secret
    for second in range(SECONDS):
        for name, share in (("visits", 20), ("orders", 6), ("payments", 5), ("web-errors", 0.3)):
            number = int(share * (10 + (second % 23)) * chance.random()) + 1
            values = [
                b'{"user": "%s", "total": %d.%02d, "cart": [{"sku": "A-%d", "count": %d}]}'
                % (
                    chance.choice(WORDS).encode(),
                    chance.randint(1, 400),
                    chance.randint(0, 99),
                    chance.randint(1, 99),
                    1,
                )
                for _ in range(number)
            ]
            await client.producer(name).send_many(values, keys=[chance.choice(WORDS).encode() for _ in values])
        await asyncio.sleep(1)


async def read(client: Client) -> None:
    """Read as a group that commits now and then."""
    async with client.consumer("visits", "orders", group="billing", start="earliest") as consumer:
        for _ in range(SECONDS // 5):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(4):
                    async for _ in consumer:
                        await asyncio.sleep(0.002)
            await consumer.commit()


async def pictures(stack: LocalStack) -> None:
    """Take them all."""
    async with browser_page(width=1200, height=760) as page:
        await shown(page, stack, "", "page-overview")
        await shown(page, stack, "topics", "page-topics")
        await shown(page, stack, "group/billing", "page-group")
        await page.goto(f"{stack.http_url}/ui/#/topic/orders?tab=records")
        await page.locator("tbody button").first.click()
        await page.wait_for_selector("dialog .json")
        await page.screenshot(path=IMAGES / "page-record.png")
    async with browser_page(width=380, height=760, color_scheme="dark") as page:
        await shown(page, stack, "topics", "page-phone")


async def access_picture() -> None:
    """Take the one of Access, of a gateway that asks who its callers are."""
    with tempfile.TemporaryDirectory() as folder:
        async with secured(Path(folder)) as its, browser_page(width=1200, height=760) as page:
            for principal, operation, name in (("eve", "consume", "web-"), ("billing", "produce", "payments")):
                await its.key_of(principal, note="made for this picture")
                rule = AccessRule(principal, (operation,), "topic", name, prefix=name.endswith("-"))
                await its.admin.security.grant(rule)
            await its.admin.security.set_quota("billing", Quota(produce_bytes=10 << 20, connections=20))
            await page.goto(f"http://127.0.0.1:{its.port}/ui/#/access")
            await page.get_by_label("API key or token").fill(ADMIN)
            await page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
            await page.get_by_role("button", name="Test a rule").click()
            dialog = page.get_by_role("dialog")
            await dialog.get_by_label("May").fill("eve")
            await dialog.get_by_label("Named").fill("web-errors")
            await dialog.get_by_role("button", name="Test").click()
            await expect(dialog.get_by_role("status")).to_contain_text("allowed")
            await page.screenshot(path=IMAGES / "page-access.png")


async def shown(page: Page, stack: LocalStack, place: str, name: str) -> None:
    """Take a picture of a place of the page."""
    await page.goto(f"{stack.http_url}/ui/#/{place}")
    await page.wait_for_selector("main[aria-busy=false]")
    await page.wait_for_timeout(500)
    await page.screenshot(path=IMAGES / f"{name}.png")


if __name__ == "__main__":
    asyncio.run(main())
