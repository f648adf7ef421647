"""The application as the server calls it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

TELEMETRY_SDK: Final = "opentelemetry.sdk"
"""The module without which nothing can receive the framework's spans and metrics."""


def entrance_of(app: FastAPI) -> ASGIApp:
    """Return an application that enters the middlewares of `app` at once.

    The framework's own entrance looks up the process's telemetry for each request, in the environment among others,
    which is a twentieth of a small publish. It is passed by where no telemetry SDK is loaded.
    """
    stack = app.middleware_stack
    assert stack is not None, "the middlewares are built with the application"
    inside: ASGIApp = stack

    def enter(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http" or TELEMETRY_SDK in sys.modules:
            return app(scope, receive, send)
        scope["app"] = app
        return inside(scope, receive, send)

    return enter
