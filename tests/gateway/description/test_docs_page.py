from __future__ import annotations

import base64
import hashlib
import re

import httpx
from tests.gateway.test_app import problem


async def test_the_page_loads_no_files_of_other_hosts(api: httpx.AsyncClient) -> None:
    page = await api.get("/docs")
    assert page.status_code == 200
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(addresses) >= 3
    for address in addresses:
        assert address.startswith("/docs/assets/"), address
        asset = await api.get(address)
        assert asset.status_code == 200
        assert len(asset.content) > 1000
    assert "//" not in re.sub(r"<!--.*?-->", "", page.text, flags=re.DOTALL).replace(
        "window.location.protocol + '//'", ""
    )
    assert "'/openapi.json'" in page.text


async def test_the_policy_allows_only_the_pages_own_scripts(api: httpx.AsyncClient) -> None:
    page = await api.get("/docs")
    directives = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert directives["default-src"] == directives["frame-ancestors"] == "'none'"
    assert directives["connect-src"] == "'self'"
    inline = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert len(inline) == 1
    digest = base64.b64encode(hashlib.sha256(inline[0].encode()).digest()).decode()
    assert directives["script-src"].split() == ["'self'", f"'sha256-{digest}'"]
    assert re.search(r"\son\w+=|javascript:", page.text) is None, "the policy forbids handlers in attributes"
    styles = (await api.get("/docs/assets/swagger-ui.css")).text
    assert set(re.findall(r"url\([\"']?(\w+:)?", styles)) == {"data:"}
    assert directives["img-src"] == "'self' data:"
    asset = await api.get("/docs/assets/swagger-ui.css")
    assert asset.headers.get_list("cache-control") == ["public, max-age=86400"]
    assert asset.headers["x-content-type-options"] == "nosniff"


async def test_the_page_supports_the_openapi_version(api: httpx.AsyncClient) -> None:
    script = (await api.get("/docs/assets/swagger-ui-bundle.js")).text
    version = re.search(r'PACKAGE_VERSION:"(\d+)', script)
    assert version is not None
    assert int(version[1]) >= 5, "older versions do not support OpenAPI 3.1"


async def test_only_its_own_files_are_served(api: httpx.AsyncClient) -> None:
    for name in ("core.py", "..%2f__init__.py", "redoc.standalone.js"):
        problem(await api.get(f"/docs/assets/{name}"), 404, "not_found")
