"""`tidelog deploy`: list or copy the packaged files for operators."""

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
"""Name of each packaged file -> its description."""


def register(app: typer.Typer) -> None:
    """Add `deploy` to the command."""
    app.command("deploy")(deploy)


def deploy(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Copy the files to this folder.", show_default=False)
    ] = None,
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite existing files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the files for Prometheus, Grafana and systemd, or copy them to FOLDER."""
    sources = [FOLDER / name for name in FILES]
    paths = sources if folder is None else copied(sources, folder, replace=replace)
    if as_json:
        print_json([{"path": str(path), "what": FILES[path.name]} for path in paths])
    else:
        print_table(("file", "what"), [(str(path), FILES[path.name]) for path in paths])


def copied(sources: list[Path], folder: Path, *, replace: bool) -> list[Path]:
    """Copy files into a folder, which is created if it is missing; return the copies.

    Raises:
        CommandFailed: a file exists and `replace` is not set, in which case nothing is copied; or the write failed.
    """
    targets = [folder / source.name for source in sources]
    existing = [target.name for target in targets if target.exists()]
    if existing and not replace:
        raise CommandFailed(
            f"{folder} already has {', '.join(existing)}; nothing was copied; overwrite with --replace", EXIT_USAGE
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source, target in zip(sources, targets, strict=True):
            whole = target.with_name(f".{target.name}.new")
            whole.write_bytes(source.read_bytes())
            os.replace(whole, target)  # noqa: PTH105 - files are replaced atomically
    except OSError as error:
        raise CommandFailed(f"cannot write to {folder}: {error.strerror}") from error
    return targets
