"""`/ui`: the page and its files, which are part of this package.

Paths are relative, so that the page works under a prefix that a proxy removes. Browsers revalidate each file by its
`ETag`, so that after an upgrade no browser uses modules of the older page.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Header
from starlette.responses import RedirectResponse, Response

from tidelog_gateway.context import GatewayDep
from tidelog_gateway.problems import Problem
from tidelog_gateway.requests.unsupported import IGNORES_QUERY

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = "index.html"
_MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

router = APIRouter(include_in_schema=False)


class _File(NamedTuple):
    data: bytes
    etag: str
    media_type: str


@cache
def _files() -> dict[str, _File]:
    """Return all files of the page by name; no other names are served."""
    by_name: dict[str, _File] = {}
    for entry in files("tidelog_gateway.ui").joinpath("static").iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        if suffix in _MEDIA_TYPES:
            data = entry.read_bytes()
            by_name[entry.name] = _File(data, f'"{hashlib.sha256(data).hexdigest()[:32]}"', _MEDIA_TYPES[suffix])
    return by_name


@router.get("/")
async def root(gateway: GatewayDep) -> Response:
    """Redirect a browser to the page."""
    _refuse_switched_off(gateway)
    return RedirectResponse("ui/", 307)


@router.get("/ui")
async def without_slash(gateway: GatewayDep) -> Response:
    """Redirect to the page, whose relative paths need the slash."""
    _refuse_switched_off(gateway)
    return RedirectResponse("ui/", 307)


@router.get("/ui/")
async def page(gateway: GatewayDep, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Return the page."""
    _refuse_switched_off(gateway)
    return _answer(_PAGE, if_none_match)


@router.get("/ui/{name}")
async def file(gateway: GatewayDep, name: str, if_none_match: Annotated[str | None, Header()] = None) -> Response:
    """Return one of the page's files."""
    _refuse_switched_off(gateway)
    if name not in _files():
        raise Problem(404, "not_found", f"the page has no file {name!r}; open /ui")
    return _answer(name, if_none_match)


for _route in (root, without_slash, page, file):
    setattr(_route, IGNORES_QUERY, True)


def _answer(name: str, if_none_match: str | None) -> Response:
    page_file = _files()[name]
    headers = {"ETag": page_file.etag, "Cache-Control": "no-cache"}
    if name == _PAGE:
        headers["Content-Security-Policy"] = POLICY
    if if_none_match is not None and _is_current(if_none_match, page_file.etag):
        return Response(status_code=304, headers=headers)
    return Response(page_file.data, media_type=page_file.media_type, headers=headers)


def _is_current(held: str, etag: str) -> bool:
    """Return whether `If-None-Match` matches the file, by the weak comparison that RFC 9110 (13.1.2) requires."""
    tags = {tag.strip().removeprefix("W/") for tag in held.split(",")}
    return "*" in tags or etag in tags


def _refuse_switched_off(gateway: GatewayDep) -> None:
    if gateway.settings.ui == "off":
        raise Problem(
            404,
            "not_found",
            "the page is disabled by ui = off in this gateway's settings; set ui to on or read_only, and restart it",
        )
