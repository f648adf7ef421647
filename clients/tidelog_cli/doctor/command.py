"""`tidelog doctor`: run the checks, print findings and remedies, and set the exit code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog import Client
from tidelog.errors import TidelogError
from tidelog_cli.base.failures import EXIT_FAILED, CommandFailed, describe
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, JsonOption, print_json, print_table
from tidelog_cli.base.session import with_client
from tidelog_cli.doctor.cluster import check_network, check_status
from tidelog_cli.doctor.configuration import check_gateway_settings, check_node_settings, read_settings
from tidelog_cli.doctor.disk import check_data
from tidelog_cli.doctor.findings import Finding, Verdict
from tidelog_cli.doctor.machine import check_machine
from tidelog_cli.doctor.ports import check_ports, ports_of

MARKS: Final[dict[Verdict, str]] = {"ok": "ok", "warning": "WARNING", "failure": "FAILURE", "skipped": "skipped"}


def register(app: typer.Typer) -> None:
    """Add `doctor` to the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    data: Annotated[
        Path | None, typer.Option(help="The node's data directory.", show_default="that of the configuration")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the tables `node` and `gateway`.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for warnings as well.")] = False,
    as_json: JsonOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Check this machine, its configuration and its cluster, and print what to change.

    Run it on a node's machine as the node's user. It measures the disk with a temporary file in the data directory.
    Exit code 0: no failures; 1: failures, or warnings with --strict.
    """
    findings = asyncio.run(_of_this_machine(data, config)) + _of_the_cluster(bootstrap)
    bad: set[Verdict] = {"failure", "warning"} if strict else {"failure"}
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.verdict in bad for finding in findings):
        raise typer.Exit(EXIT_FAILED)


async def _of_this_machine(data: Path | None, config: Path | None) -> list[Finding]:
    node, gateway = read_settings("node", config), read_settings("gateway", config)
    processors = len(os.sched_getaffinity(0))
    findings = [*check_machine(), *check_node_settings(node), *check_gateway_settings(gateway, processors)]
    where = data or (Path(str(node["data"])) if node.get("data") else None)
    if where is None:
        reason = "no data directory is configured: give --data DIR, --config FILE or TIDELOG_NODE_DATA"
        findings.append(Finding("disk", "skipped", reason))
    else:
        findings += check_data(where)
    return findings + [finding async for finding in check_ports(ports_of(node, gateway))]


def _of_the_cluster(bootstrap: str) -> list[Finding]:
    async def work(client: Client) -> list[Finding]:
        status = await client.cluster_status()
        return [*await check_network(status.nodes), *check_status(status)]

    try:
        return with_client(bootstrap, work)
    except (TidelogError, CommandFailed, OSError) as error:
        # The default address may have no cluster yet, when a machine is set up.
        is_named = bool(bootstrap or os.environ.get("TIDELOG_BOOTSTRAP"))
        remedy = "start a node, give its address with --bootstrap or a context, or correct the credentials"
        return [Finding("cluster", "failure" if is_named else "skipped", describe(error), remedy)]


def _print(findings: Sequence[Finding]) -> None:
    print_table(
        ("check", "verdict", "found"),
        [(finding.check, MARKS[finding.verdict], finding.found) for finding in findings],
    )
    to_do = [finding for finding in findings if finding.remedy and finding.verdict in {"failure", "warning"}]
    if to_do:
        print_table(("check", "remedy"), [(finding.check, finding.remedy) for finding in to_do])
    counts = {verdict: sum(finding.verdict == verdict for finding in findings) for verdict in MARKS}
    typer.echo(
        f"{_counted(counts['failure'], 'failure')}, {_counted(counts['warning'], 'warning')}, {counts['ok']} ok, "
        f"{counts['skipped']} skipped"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
