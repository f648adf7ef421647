from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest
from tests import javascript_bundle
from tests.gateway.conftest import OpenApi
from tests.gateway.test_app import problem

ROOT = Path(__file__).parents[3]
PATH = "/ui/client.js"


def test_the_bundle_is_up_to_date() -> None:
    assert javascript_bundle.BUNDLE.read_text() == javascript_bundle.render(), "python -m tests.javascript_bundle"


async def test_types_of_the_client_are_up_to_date_and_served(api: httpx.AsyncClient) -> None:
    text = javascript_bundle.TYPES.read_text()
    assert text == javascript_bundle.render_types(), "python -m tests.javascript_bundle"
    answer = await api.get("/ui/client.d.ts")
    assert (answer.status_code, answer.text) == (200, text)
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_the_client_is_served_with_any_query(api: httpx.AsyncClient) -> None:
    for query in ("v=1", "2", "v=1&v=2"):
        assert (await api.get(f"{PATH}?{query}")).status_code == 200, query
    assert (await api.get("/ui?theme=dark")).status_code == 307


def test_the_bundle_refuses_unsupported_forms_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(javascript_bundle, "SOURCES", tmp_path)
    (tmp_path / "index.js").write_text('export { a } from "./a.js";\n')
    for text in ('import * as b from "./b.js";\n', "export default 1;\n", "export let a = 1;\n"):
        (tmp_path / "a.js").write_text(text)
        with pytest.raises(ValueError, match=r"a\.js: the bundle has no form for"):
            javascript_bundle.render()
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b;\n')
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\nexport const b = a;\n')
    with pytest.raises(ValueError, match=r"import each other: a\.js -> b\.js -> a\.js"):
        javascript_bundle.render()
    (tmp_path / "b.js").write_text("export const b = 1;\n")
    assert javascript_bundle.render().endswith("\nconst b = 1;\n\nconst a = b;\n\nexport { a };\n")


async def test_the_client_is_served_as_a_script_that_browsers_revalidate(api: httpx.AsyncClient) -> None:
    answer = await api.get(PATH)
    assert (answer.status_code, answer.text) == (200, javascript_bundle.BUNDLE.read_text())
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers.get_list("cache-control") == ["no-cache"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    etag = answer.headers["etag"]
    for held in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await api.get(PATH, headers={"If-None-Match": held})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag), held
    assert (await api.get(PATH, headers={"If-None-Match": '"other"'})).status_code == 200
    problem(await api.get("/ui/client.js/"), 404, "not_found")
    problem(await api.post(PATH), 405, "method_not_allowed")


async def test_pages_of_allowed_origins_may_import_the_client(open_api: OpenApi) -> None:
    async with open_api(allowed_origins=["https://app.example"]) as api:
        answer = await api.get(PATH, headers={"Origin": "https://app.example"})
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


@pytest.mark.long
def test_a_wheel_contains_the_client(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100, env=os.environ)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        for path in (javascript_bundle.BUNDLE, javascript_bundle.TYPES):
            assert opened.read(f"tidelog_gateway/ui/static/{path.name}") == path.read_bytes()
