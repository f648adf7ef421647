"""Checks of settings of nodes and gateways, from a file and the environment, for likely mistakes.

The node or gateway that uses the settings validates them. Here they are read without validation, because the command
may be installed without the packages of the node and the gateway.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.doctor.findings import Finding
from tidelog_proto.wire.loopback import is_loopback

Settings = Mapping[str, Any]
"""Key -> value; values of environment variables are text."""

DEFAULTS: Final = {
    "node": {"host": "127.0.0.1", "port": 7400, "management_host": "127.0.0.1", "management_port": 7401},
    "gateway": {"host": "127.0.0.1", "http_port": 8080},
}
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")  # noqa: S108 - these cause warnings


def read_settings(section: str, path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of `node` or `gateway`, with defaults for those that are checked.

    Raises:
        CommandFailed: the file cannot be read, or is not TOML.
    """
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text()).get(section, {})
        except OSError as error:
            raise CommandFailed(f"cannot read {path}: {error.strerror}", EXIT_USAGE) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{path} is not valid TOML: {error}", EXIT_USAGE) from error
    prefix = f"TIDELOG_{section.upper()}_"
    variables = {name.removeprefix(prefix).lower(): value for name, value in environ.items() if name.startswith(prefix)}
    return DEFAULTS[section] | table | variables


def check_node_settings(settings: Settings) -> Iterator[Finding]:
    """Check a node's settings for likely mistakes."""
    before = 0
    for finding in _node_smells(settings):
        before += 1
        yield finding
    if not before:
        yield Finding("node settings", "ok", "nothing unusual")


def _node_smells(settings: Settings) -> Iterator[Finding]:
    check, host = "node settings", str(settings["host"])
    exposed = not is_loopback(host)
    if is_true(settings.get("insecure")) and exposed:
        fact = f"insecure = true and host = {host}: the node serves other machines even without TLS or authentication"
        yield Finding(check, "warning", fact, "set tls_cert_file and auth = required (docs/security.md)")
    if host in {"0.0.0.0", "::"} and not settings.get("advertise_host"):  # noqa: S104 - this causes a warning
        fact = f"host = {host} without advertise_host: the node would advertise 127.0.0.1 to clients"
        yield Finding(check, "failure", fact, "set advertise_host to the name by which others reach this machine")
    if not is_loopback(str(settings["management_host"])) and not settings.get("management_token_file"):
        effect = "every machine may read the metrics" if is_true(settings.get("insecure")) else "Prometheus gets 403"
        fact = f"the management port is reachable from other machines without management_token_file: {effect}"
        yield Finding(check, "warning", fact, "create a token (docs/metrics.md), or set management_host to 127.0.0.1")
    data = str(settings.get("data", ""))
    if any(data == each or data.startswith(f"{each}/") for each in TEMPORARY):
        yield Finding(
            check,
            "warning",
            f"data = {data} is in a temporary directory, which the system may empty",
            "move the data, for example to /var/lib/tidelog",
        )
    if str(settings.get("replication_factor_default", "3")) == "1" and (
        settings.get("bootstrap") or settings.get("seeds")
    ):
        fact = "replication_factor_default = 1 in a cluster: the loss of one disk loses topics"
        yield Finding(check, "warning", fact, "set replication_factor_default to 3")
    if str(settings.get("scrub_bytes_per_s", "1")) == "0":
        yield Finding(check, "warning", "scrub_bytes_per_s = 0: damage is only detected by reads", "use the default")


def check_gateway_settings(settings: Settings, processors: int) -> Iterator[Finding]:
    """Check whether the gateway has more workers than the machine has processors."""
    workers = str(settings.get("workers", "1"))
    if workers.isdigit() and int(workers) > max(1, processors):
        fact = (
            f"workers = {workers} with {processors} processors: further workers use memory and serve no more requests"
        )
        yield Finding("gateway settings", "warning", fact, f"set workers to at most {processors}")


def is_true(value: object) -> bool:
    """Return whether a setting from a file or an environment variable is true."""
    return str(value).lower() in {"true", "1", "yes", "on"}
