"""A headless Chromium for tests of the page; they are skipped where none is installed (Debian's package `chromium`)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Page, async_playwright, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 30_000
expect.set_options(timeout=WAIT_MS)


@asynccontextmanager
async def browser_page(
    *,
    width: int = 1280,
    height: int = 900,
    color_scheme: Literal["light", "dark"] = "light",
    any_certificate: bool = False,
) -> AsyncIterator[Page]:
    """Open a page in a browser of its own; in the end nothing may have failed in it, nor been refused by its policy.

    Args:
        any_certificate: whether the browser accepts certificates of CAs that it does not know.
    """
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            page = await browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme=color_scheme,
                ignore_https_errors=any_certificate,
            )
            page.set_default_timeout(WAIT_MS)
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda said: faults.append(said.text) if "Security Policy" in said.text else None)
            yield page
            assert faults == []
        finally:
            await browser.close()


async def accessibility_faults(page: Page) -> list[str]:
    """Return what axe-core finds that is serious or critical."""
    found = (await Axe().run(page)).response["violations"]
    return [
        f"{fault['id']}: {node['html'][:200]}"
        for fault in found
        if fault["impact"] in {"serious", "critical"}
        for node in fault["nodes"]
    ]
