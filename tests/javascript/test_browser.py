"""The JavaScript client in a real browser, as the gateway serves it.

Needs the package playwright and a Chromium: the one of the system (`apt-get install chromium`), or the one that
TIDELOG_CHROMIUM names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.gateway.conftest import process
from tests.gateway.secured import secured
from tests.javascript.page_blocks import ADDRESS, COOKBOOK, html

from tidelog import Client

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PUBLISH_AND_SUBSCRIBE = """async ([url, topic]) => {
  const { TidelogClient } = await import(`${url}/ui/client.js`);
  const client = new TidelogClient({ url });
  await client.topics.create(topic, { partitions: 2 });
  const live = await client.subscribe(topic, { credit: { records: 10 } }).ready();
  const exact = '{"id":12345678901234567890}';
  const rows = Array.from({ length: 100 }, (_, n) => ({ key: String(n % 7), value: String(n) }));
  rows.push({ value: new Uint8Array([255]), partition: 0 }, { valueText: exact, partition: 0 });
  await client.publishMany(topic, rows);
  const seen = [];
  for await (const record of live) {
    seen.push(record.value);
    live.processed(record);
    if (seen.length === 102) break;
  }
  const again = await client.subscribe(topic, live.state).ready();
  await client.publish(topic, { value: null });
  let tombstones = 0;
  for await (const record of again) {
    if (record.isTombstone) { tombstones += 1; break; }
    seen.push("again");
  }
  const { records } = await client.read(topic, 0, { from: "earliest" });
  const json = records.find((record) => record.value === exact).json({ numbers: "bigint" });
  const bytes = seen.filter((value) => value instanceof Uint8Array).length;
  return { texts: seen.length - bytes, bytes, id: String(json.id), tombstones };
}"""

REFUSED = """async ([url, other]) => {
  const { TidelogClient } = await import(`${url}/ui/client.js`);
  const client = new TidelogClient({ url: other, retries: 0 });
  const found = [];
  await client.topics.page().catch((error) => found.push(error.code));
  await client.subscribe("t", { reconnect: false }).ready().catch((error) => found.push(error.code));
  const stop = new AbortController();
  stop.abort(new Error("enough"));
  await client.topics.page({ signal: stop.signal }).catch((error) => found.push(error.message));
  return found;
}"""


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A page of a headless Chromium; an uncaught error that it logs fails the test."""
    playwright = pytest.importorskip("playwright.async_api", reason="needs the package playwright")
    chromium = os.environ.get("TIDELOG_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs a Chromium on the path, or its path in TIDELOG_CHROMIUM")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            page = await browser.new_page()
            uncaught: list[Any] = []
            page.on("pageerror", lambda error: uncaught.append(error))  # noqa: PLW0108 # it takes no built-in
            yield page
            assert uncaught == []
        finally:
            await browser.close()


@contextlib.contextmanager
def gateway(node_address: str, *, port: str = "0", **variables: str) -> Iterator[str]:
    with process("gateway", "--bootstrap", node_address, "--http-port", port, **variables) as (_, ready):
        yield f"http://127.0.0.1:{ready['http_port']}"


async def test_a_page_of_the_gateway_publishes_and_subscribes(page: Page, node_address: str) -> None:
    with gateway(node_address) as url:
        await page.goto(f"{url}/docs")
        found = await page.evaluate(PUBLISH_AND_SUBSCRIBE, [url, f"browser-{uuid4().hex[:8]}"])
    assert found == {"texts": 101, "bytes": 1, "id": "12345678901234567890", "tombstones": 1}


class _Pages(BaseHTTPRequestHandler):
    text = "<!doctype html><title>of another server</title>"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the name of the base class
        pass


@contextlib.contextmanager
def other_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


async def test_a_page_of_another_origin_may_use_the_gateway_that_allows_it(page: Page, node_address: str) -> None:
    with other_server() as origin, gateway(node_address, TIDELOG_GATEWAY_ALLOWED_ORIGINS=origin) as url:
        await page.goto(origin)
        found = await page.evaluate(PUBLISH_AND_SUBSCRIBE, [url, f"browser-{uuid4().hex[:8]}"])
        assert found["texts"] == 101
        with gateway(node_address) as other:
            assert await page.evaluate(REFUSED, [url, other]) == ["connection_failed", "connection_lost", "enough"]


async def test_the_page_of_the_documentation_shows_records(
    page: Page, node_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_server() as origin, gateway(node_address, TIDELOG_GATEWAY_ALLOWED_ORIGINS=origin) as url:
        topic = f"browser-{uuid4().hex[:8]}"
        text = html().replace(ADDRESS, url).replace('subscribe("visits"', f'subscribe("{topic}"')
        monkeypatch.setattr(_Pages, "text", text)
        async with Client(node_address) as client:
            await client.create_topic(topic)
            await client.producer(topic).send(b"/docs", key=b"ada")
            await page.goto(origin)
            item = page.locator("#visits li")
            await item.first.wait_for()
            assert await item.all_inner_texts() == ["ada: /docs"]


async def test_the_page_of_the_cookbook_counts_each_record_once_over_reloads(
    page: Page, node_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_server() as origin, gateway(node_address, TIDELOG_GATEWAY_ALLOWED_ORIGINS=origin) as url:
        topic = f"browser-{uuid4().hex[:8]}"
        text = html(COOKBOOK).replace(ADDRESS, url).replace('subscribe("visits"', f'subscribe("{topic}"')
        monkeypatch.setattr(_Pages, "text", text)
        async with Client(node_address) as client:
            await client.create_topic(topic)
            producer = client.producer(topic)
            await producer.send_many([b"/"] * 3, keys=[b"ada", b"<b>", b"ada"])
            await page.goto(origin)
            await page.get_by_text("ada: 2").wait_for()
            await producer.send(b"/", key=b"ada")
            await page.get_by_text("ada: 3").wait_for()
            await page.reload()
            await producer.send(b"/", key=b"ada")
            await page.get_by_text("ada: 4").wait_for()
            assert sorted(await page.locator("#counts li").all_inner_texts()) == ["<b>: 1", "ada: 4"]


async def test_the_page_of_the_cookbook_can_be_reloaded_while_the_gateway_is_down(
    page: Page, node_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_server() as origin:
        topic = f"browser-{uuid4().hex[:8]}"
        async with Client(node_address) as client:
            await client.create_topic(topic)
            producer = client.producer(topic)
            await producer.send(b"/", key=b"ada")
            with gateway(node_address, TIDELOG_GATEWAY_ALLOWED_ORIGINS=origin) as url:
                text = html(COOKBOOK).replace(ADDRESS, url).replace('subscribe("visits"', f'subscribe("{topic}"')
                monkeypatch.setattr(_Pages, "text", text)
                await page.goto(origin)
                await page.get_by_text("ada: 1").wait_for()
            await page.reload()
            await page.get_by_text("cannot load the client").wait_for()
            assert await page.locator("#counts li").all_inner_texts() == ["ada: 1"]
            await producer.send(b"/", key=b"ada")
            port = url.rpartition(":")[2]
            with gateway(node_address, port=port, TIDELOG_GATEWAY_ALLOWED_ORIGINS=origin):
                await page.get_by_text("ada: 2").wait_for()


async def test_the_page_of_the_cookbook_reads_one_topic_with_a_key(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_server() as origin:
        async with secured(tmp_path, allowed_origins=[origin]) as gate:
            await gate.admin.create_topic("temps")
            await gate.admin.producer("temps").send_many([b"not JSON", b'{"sensor": "roof", "c": 21}'])
            key = await gate.key_of("webpage", (("consume",), "topic", "temps"))
            other = await gate.key_of("other")
            url = f"http://127.0.0.1:{gate.port}"
            text = html(COOKBOOK, 1).replace("https://127.0.0.1:8080", url)
            monkeypatch.setattr(_Pages, "text", text.replace("./client.js", f"{url}/ui/client.js"))
            await page.goto(origin)
            await page.locator("#key").fill(other)
            await page.get_by_role("button").click()
            await page.get_by_text("tidelog acl grant other consume topic:temps").wait_for()
            await page.locator("#key").fill(key)
            await page.get_by_role("button").click()
            await page.get_by_text("roof: 21 °C").wait_for()
            await page.reload()
            await page.get_by_text("roof: 21 °C").wait_for()
