"""The `gateway` command of `tidelog`."""

from __future__ import annotations

import errno
import logging
import os
import signal
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog.cluster.contexts import Context, find_context
from tidelog.credentials import API_KEY_FILE_VARIABLE, PASSWORD_FILE_VARIABLE, TOKEN_FILE_VARIABLE
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.workers.worker_settings import worker_settings_of
from tidelog_proto.auth.secret_permissions import file_permission_fault
from tidelog_proto.process.crashes import prepare_for_crashes
from tidelog_proto.process.file_descriptors import connections_that_fit, raise_descriptor_limit
from tidelog_proto.process.garbage_collection import no_collections
from tidelog_proto.process.settings import SettingsError, load_settings
from tidelog_proto.process.standard_streams import queued_streams
from tidelog_proto.wire.loopback import is_loopback

log = logging.getLogger(__name__)

RESERVED_DESCRIPTORS: Final = 128
"""Descriptors reserved for connections to nodes, short-lived files, and connections that are accepted only to be
refused."""
BOOTSTRAP: Final = "TIDELOG_BOOTSTRAP"
_SECRET_FILES: Final = {
    API_KEY_FILE_VARIABLE: "the API key",
    TOKEN_FILE_VARIABLE: "the token",
    PASSWORD_FILE_VARIABLE: "the password",
}


OriginOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN",
        help="Origin of pages that may use the gateway, such as https://app.example; may be repeated.",
        show_default="those of the settings",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command; called by `tidelog` through the entry point `tidelog.commands`."""
    app.command("gateway")(gateway)


@queued_streams()
def gateway(
    ctx: typer.Context,
    *,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            help="Bootstrap nodes, HOST:PORT, separated by commas.",
            show_default="those of TIDELOG_BOOTSTRAP or of the context, or 127.0.0.1:7400",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    http_port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 picks a free one.", show_default="8080")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow other hosts without TLS or authentication.")
    ] = False,
    auth: Annotated[
        str | None,
        typer.Option(help="callers: authenticate each request. none: all requests act with the gateway's own key."),
    ] = None,
    allowed_hosts: Annotated[
        str | None,
        typer.Option(
            help="Host names that requests may use, separated by commas.", show_default="addresses, localhost"
        ),
    ] = None,
    allow_origin: OriginOption = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes that serve the port.", show_default="1", metavar="N")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with a table `gateway`.")] = None,
) -> None:
    """Serve HTTP and WebSocket for a cluster; prints one JSON line when ready."""
    try:
        settings = load_settings(
            GatewaySettings,
            "gateway",
            config,
            {
                "bootstrap": _split(bootstrap),
                "host": host,
                "http_port": http_port,
                "insecure": insecure or None,
                "auth": auth,
                "allowed_hosts": _split(allowed_hosts),
                "allowed_origins": allow_origin or None,
                "workers": workers,
            },
        )
        worker_settings_of(settings)
        _check_exposure(settings)
        settings, context = _with_context(settings, ctx.find_root().params.get("context"))
        _check_secrets(context)
    except SettingsError as error:
        typer.echo(f"tidelog gateway: {error}", err=True)
        raise typer.Exit(2) from error
    settings = _with_descriptor_limit(settings)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the server handles signals itself, Ctrl-C ends the process without an exception: libraries that are
        # interrupted while they build data models would report an error of their own.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    prepare_for_crashes()
    try:
        code = _serve(settings, context)
    except SettingsError as error:
        typer.echo(f"tidelog gateway: {error}", err=True)
        raise typer.Exit(2) from error
    except OSError as error:
        hint = (
            "; stop the program that uses this port, or choose another port with --http-port"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        where = f"{settings.host}:{settings.http_port}"
        typer.echo(f"tidelog gateway: cannot listen on {where}: {error.strerror}{hint}", err=True)
        raise typer.Exit(1) from error
    if code:
        raise typer.Exit(code)


def _serve(settings: GatewaySettings, context: Context | None) -> int:
    """Serve in this process or in several workers; return the exit code.

    Raises:
        OSError: the address cannot be bound.
        SettingsError: the certificate cannot be used.
    """
    if settings.workers == 1:
        with no_collections():
            from tidelog_gateway.server.gateway_server import serve  # noqa: PLC0415 # slow: not for `tidelog --help`

        serve(settings, context)
        return 0
    from tidelog_gateway.workers.parent import run_workers  # noqa: PLC0415 # most gateways have no workers

    return run_workers(settings, context)


def _with_context(settings: GatewaySettings, name: str | None) -> tuple[GatewaySettings, Context | None]:
    """Return the settings with the bootstrap nodes, and the context to use, as for every other command.

    If bootstrap nodes are given without the name of a context, no context is used: the credentials of the default
    context must not be sent to another cluster.

    Args:
        settings: settings from files, variables and options.
        name: name of the context, from `tidelog --context` or TIDELOG_CONTEXT.

    Raises:
        InvalidRequestError: the context does not exist, or the file of contexts is invalid.
    """
    bootstrap = settings.bootstrap if "bootstrap" in settings.model_fields_set else _split(os.environ.get(BOOTSTRAP))
    context = find_context(name) if name or not bootstrap else None
    places = bootstrap or (list(context.bootstrap) if context else settings.bootstrap)
    return settings.model_copy(update={"bootstrap": places}), context


def _check_secrets(context: Context | None) -> None:
    """Refuse to use credentials that other users of this machine can read."""
    paths = {what: os.environ.get(variable) for variable, what in _SECRET_FILES.items()}
    if context is not None and context.credentials() is not None:
        paths = dict(
            zip(_SECRET_FILES.values(), (context.api_key_file, context.token_file, context.password_file), strict=True)
        )
    for what, path in paths.items():
        complaint = file_permission_fault(Path(path), what) if path else ""
        if complaint:
            raise SettingsError(complaint)


def _with_descriptor_limit(settings: GatewaySettings) -> GatewaySettings:
    """Raise the soft limit of open files; if connections_max needs more, lower connections_max and log a warning."""
    fitting = settings.workers * max(1, raise_descriptor_limit() - RESERVED_DESCRIPTORS)
    fitting = connections_that_fit(settings.connections_max, fitting, log)
    return settings.model_copy(update={"connections_max": fitting})


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _check_exposure(settings: GatewaySettings) -> None:
    """Refuse to listen on an address that other hosts can reach without TLS or authentication."""
    lacks: list[str] = []
    if settings.tls_cert_file is None:
        lacks.append("without encryption")
    if settings.auth == "none":
        lacks.append("without authentication")
    if settings.insecure or not lacks or is_loopback(settings.host):
        return
    raise SettingsError(
        f"other hosts could reach this gateway at {settings.host} {' and '.join(lacks)}, so it does not start. Set up "
        "TLS and authentication with these lines (docs/security.md), listen on 127.0.0.1, or set --insecure in a "
        "trusted network:\n"
        "  tidelog certs init certs && tidelog certs issue certs server gateway --host HOST\n"
        "  tidelog key create gateway --out gateway.key && tidelog acl grant gateway impersonate cluster\n"
        "  export TIDELOG_GATEWAY_TLS_CERT_FILE=certs/gateway.pem TIDELOG_GATEWAY_TLS_KEY_FILE=certs/gateway.key "
        "TIDELOG_GATEWAY_AUTH=callers TIDELOG_API_KEY_FILE=gateway.key"
    )
