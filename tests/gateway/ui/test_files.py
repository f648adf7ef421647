from __future__ import annotations

import re
from importlib.resources import files
from pathlib import PurePosixPath

import httpx
import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.test_app import problem

STATIC = files("tidelog_gateway.ui").joinpath("static")
NAMES = sorted(entry.name for entry in STATIC.iterdir())


async def test_a_browser_is_redirected_to_the_page(api: httpx.AsyncClient) -> None:
    for path in ("/", "/ui"):
        answer = await api.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, "ui/")
    page = await api.get("/ui/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"


async def test_the_page_loads_only_files_that_are_served(api: httpx.AsyncClient) -> None:
    page = (await api.get("/ui/")).text
    wanted = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(wanted) >= 2
    for name in NAMES:
        text = STATIC.joinpath(name).read_text()
        wanted += re.findall(r'from "\./([^"]+)"', text)
        assert "http://" not in text.replace("http://www.w3.org/", "").replace("http://127.0.0.1:8080", ""), (
            f"{name} names another host"
        )
        assert "https://" not in text, f"{name} names another host"
    for name in wanted:
        assert (await api.get(f"/ui/{name}")).status_code == 200, name


async def test_the_policy_allows_only_the_pages_own_files(api: httpx.AsyncClient) -> None:
    answer = await api.get("/ui/")
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not re.search(r"<script>|<style>|\sstyle=|\son\w+=", answer.text), (
        "the policy forbids inline scripts and styles"
    )


@pytest.mark.parametrize("name", NAMES)
async def test_a_file_is_sent_again_only_if_it_has_changed(api: httpx.AsyncClient, name: str) -> None:
    first = await api.get(f"/ui/{name}")
    assert first.content == STATIC.joinpath(name).read_bytes()
    assert first.headers["cache-control"] == "no-cache"
    assert PurePosixPath(name).suffix in {".html", ".js", ".ts", ".css", ".svg"}
    same = await api.get(f"/ui/{name}", headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (same.status_code, same.content) == (304, b"")
    assert (await api.get(f"/ui/{name}", headers={"If-None-Match": '"other"'})).status_code == 200


async def test_only_the_pages_own_files_are_served(api: httpx.AsyncClient) -> None:
    for name in ("files.py", "..%2f__init__.py", "%2e%2e/files.py"):
        problem(await api.get(f"/ui/{name}"), 404, "not_found")


async def test_a_gateway_with_the_page_switched_off_serves_none(open_api: OpenApi) -> None:
    async with open_api(ui="off") as api:
        for path in ("/", "/ui", "/ui/", "/ui/app.js"):
            problem(await api.get(path), 404, "not_found")
        assert (await api.get("/v1/me")).json()["ui"] == "off"
        assert (
            (await api.get("/v1/history")).json()["fault"].startswith("this gateway takes no samples, because ui = off")
        )
