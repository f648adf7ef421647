"""`/docs`: the API's documentation, without files from other hosts.

FastAPI's own page loads Swagger UI from a CDN, which closed networks cannot reach. The files come from the installed
package `fastapi-offline`, of which nothing else is used. Rejected: `swagger-ui-bundle`, whose Swagger UI 4.15 does not
support OpenAPI 3.1.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import Response

from tidelog_gateway.context import json_response
from tidelog_gateway.problems import Problem

_ASSETS_PACKAGE: Final = "fastapi_offline"
_MEDIA_TYPES: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon.png": "image/png",
}

_INLINE_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    """Return the description of the API."""
    return json_response(request.app.openapi())


@router.get("/docs")
async def docs() -> Response:
    """Return the documentation page."""
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="Tidelog gateway",
        swagger_js_url="/docs/assets/swagger-ui-bundle.js",
        swagger_css_url="/docs/assets/swagger-ui.css",
        swagger_favicon_url="/docs/assets/favicon.png",
    )
    page.headers["Content-Security-Policy"] = _policy_of(bytes(page.body).decode())
    return page


def _policy_of(page: str) -> str:
    """Return the page's Content-Security-Policy: its own files and inline scripts, requests to this gateway only."""
    hashes = [f"'sha256-{_sha256(script)}'" for script in _INLINE_SCRIPT.findall(page)]
    # Swagger UI sets inline styles and draws images from data: URLs.
    return (
        f"default-src 'none'; script-src 'self' {' '.join(hashes)}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@lru_cache(maxsize=len(_MEDIA_TYPES))
def _data_of(name: str) -> bytes:
    """Return a file's bytes, cached."""
    return files(_ASSETS_PACKAGE).joinpath("static", name).read_bytes()


@router.get("/docs/assets/{name}")
async def asset(name: str) -> Response:
    """Return one of the page's files."""
    media_type = _MEDIA_TYPES.get(name)
    if media_type is None:
        raise Problem(404, "not_found", f"the documentation page has no file {name!r}; open /docs")
    return Response(_data_of(name), media_type=media_type, headers={"Cache-Control": "public, max-age=86400"})
