"""`tidelog deploy`: the files for operators that the package brings, listed with their paths or copied to a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import JsonOption, print_json, print_table

FOLDER: Final = Path(__file__).parents[1] / "deploy_files"

FILES: Final = {
    "tidelog-rules.yml": "recording and alerting rules for Prometheus",
    "tidelog-dashboard.json": "dashboard for Grafana",
    "tidelog-node.service": "systemd unit of a node",
    "tidelog-gateway.service": "systemd unit of a gateway",
    "tidelog.toml": "settings for both units",
}
"""Each file and what it is."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("deploy")(deploy)


def deploy(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Copy the files there.", show_default=False)
    ] = None,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Also over files of these names.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the files for operators: for Prometheus, Grafana and systemd; or copy them to FOLDER."""
    sources = [FOLDER / name for name in FILES]
    paths = sources if folder is None else copied(sources, folder, replace=replace)
    if as_json:
        print_json([{"path": str(path), "what": FILES[path.name]} for path in paths])
    else:
        print_table(("file", "what"), [(str(path), FILES[path.name]) for path in paths])


def copied(sources: list[Path], folder: Path, *, replace: bool) -> list[Path]:
    """Copy files into a folder, which is made if it is missing; return the copies.

    Raises:
        CommandFailed: one of them exists, and `replace` is not given: nothing is copied then; or it cannot be written.
    """
    targets = [folder / source.name for source in sources]
    existing = [target.name for target in targets if target.exists()]
    if existing and not replace:
        raise CommandFailed(
            f"{folder} already has {', '.join(existing)}: nothing is copied; say --replace to overwrite", EXIT_USAGE
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, target in zip(sources, targets, strict=True):
            whole = target.with_name(f".{target.name}.new")
            whole.write_bytes(source.read_bytes())
            os.replace(whole, target)  # noqa: PTH105 - a file is whole under its name, or not there
    except OSError as error:
        raise CommandFailed(f"cannot write to {folder}: {error.strerror}") from error
    return targets
