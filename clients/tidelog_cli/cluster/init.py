"""`tidelog cluster init`: write the two files that found a cluster, and print how each founder is started.

A cluster of whose nodes others than their machine reach one is started with TLS and authentication: the lines for its
certificates and the administrator's key come first, and every command names them. No command has a secret in it.

Nothing is asked of any node: there is none yet. What is there is never overwritten, because with other files under the
same names the founders of an older cluster would not know each other any more.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import JsonOption, print_json
from tidelog_cli.cluster.founding_files import BOOTSTRAP, SECRET, bootstrap_document, write_bootstrap, write_secret
from tidelog_proto.process.private_files import PRIVATE_DIR_MODE
from tidelog_proto.wire.loopback import is_loopback

PORT: Final = 7400
ADMIN_KEY: Final = "admin.key"
SHAPE: Final = "ID=HOST[:PORT][,zone=ZONE][,gossip_port=PORT][,role=ingestion|persistence]"

_ID: Final = re.compile(r"[^\s,=:/\x00-\x1f\x7f]{1,128}")
_HOST: Final = re.compile(r"[^\s,=/\[\]\x00-\x1f\x7f]{1,253}")
_ROLES: Final = ("ingestion", "persistence")
_PORT_MAX: Final = 65535


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made if it is not there.", show_default=False)],
    *,
    nodes: Annotated[
        list[str],
        typer.Option("--node", metavar="NODE", help=f"A founder, one option each: {SHAPE}", show_default=False),
    ],
    name: Annotated[str, typer.Option(help="What people call the cluster; DIR's name unless given.")] = "",
    from_data: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DATA",
            help="The data directory of a node that was alone: it founds the cluster, with all that it has.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the bootstrap file and the secret of a new cluster, and print the command that starts each founder.

    Three founders survive the loss of any one of them, five of any two. Both files go to every founder. With --from a
    node that stands alone becomes the only founder; others join it with --seeds.
    """
    founders = [founder(text) for text in nodes]
    refuse_twice(founders)
    document = bootstrap_document(name.strip() or directory.resolve().name or "tidelog", founders)
    if from_data is not None:
        document["cluster_id"] = lone_cluster(from_data, founders)
    bootstrap, secret = directory / BOOTSTRAP, directory / SECRET
    write(directory, document)
    secured = any(not is_loopback(one["host"]) for one in founders)
    issuing = preparations(directory, founders) if secured else []
    commands = {one["node_id"]: command(directory, one["node_id"], from_data, secured=secured) for one in founders}
    if as_json:
        told = {"cluster_id": document["cluster_id"], "bootstrap": str(bootstrap), "secret_file": str(secret)}
        print_json(told | {"preparations": issuing, "commands": commands})
        return
    sys.stdout.write(
        f"{bootstrap}: the cluster {document['name']!r}, id {document['cluster_id']}\n"
        f"{secret}: its secret; who has it can be a node of the cluster\n\n"
    )
    if secured:
        sys.stdout.write("Other machines reach these nodes, so they need certificates and an administrator's key:\n\n")
        _print_lines(issuing)
        sys.stdout.write(
            f"\nCopy {BOOTSTRAP}, {SECRET}, ca.pem and {ADMIN_KEY} to the machine of each founder, with its own ID.pem "
            "and ID.key; ca.key stays here. Start there, in any order:\n\n"
        )
    else:
        sys.stdout.write("Copy both to the machine of each founder, and start there, in any order:\n\n")
    _print_lines(commands.values())
    sys.stdout.write(f"\nThe founders wait for each other: {waiting(len(founders))}.\n")
    if from_data is not None:
        sys.stdout.write("Stop it where it runs alone, start it so, and let others join:\n\n")
        _print_lines(_joining(directory, founders[0], secured=secured))
        sys.stdout.write("\nIts topics get copies with: tidelog topic alter TOPIC --replication-factor 3\n")


def _print_lines(lines: Iterable[Sequence[str]]) -> None:
    """Print commands as a shell takes them, whatever characters are in their words."""
    for words in lines:
        sys.stdout.write(f"  {shlex.join(words)}\n")


def _joining(directory: Path, founder: dict[str, Any], *, secured: bool) -> list[list[str]]:
    """Return the commands for a node that joins, with the placeholders ID, HOST and DATA."""
    host = f"[{founder['host']}]" if ":" in founder["host"] else founder["host"]
    seeds = ("--seeds", f"{host}:{founder['port']}", "--secret-file", str(directory / SECRET))
    start = [
        *_secured(directory, "ID", secured=secured),
        "tidelog",
        "node",
        *seeds,
        "--node-id",
        "ID",
        "--data",
        "DATA",
    ]
    return (
        [["tidelog", "certs", "issue", str(directory), "node", "ID", "--host", "HOST"], start] if secured else [start]
    )


def waiting(founders: int) -> str:
    """Return for whom a founder waits at the cluster's very first start."""
    if founders == 1:
        return "this one is alone and waits for nobody"
    if founders <= 4:
        return "the cluster is there when all of them have been started"
    return "the cluster is there when most of them have been started, and each says for whom it waits"


def lone_cluster(data: Path, founders: list[dict[str, Any]]) -> str:
    """Return the cluster's id of a node that was alone, if it is the only founder.

    Raises:
        CommandFailed: it is no data directory, or another founder is named.
    """
    try:
        record = json.loads((data / "node.json").read_bytes())
        node_id, cluster_id = str(record["node_id"]), str(record["cluster_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{data} is not the data directory of a node: {error}", EXIT_USAGE) from error
    if [one["node_id"] for one in founders] != [node_id]:
        raise CommandFailed(
            f"{data} is the directory of {node_id!r}, which founds alone: give --node {node_id}=HOST[:PORT] and no "
            "other; more nodes join when it runs",
            EXIT_USAGE,
        )
    return cluster_id


def preparations(directory: Path, founders: list[dict[str, Any]]) -> list[list[str]]:
    """Return the commands that make certificates for founders, and the administrator's key."""
    issue = ("tidelog", "certs", "issue", str(directory), "node")
    return [
        ["tidelog", "certs", "init", str(directory)],
        *([*issue, one["node_id"], "--host", one["host"]] for one in founders),
        ["tidelog", "key", "new", "--out", str(directory / ADMIN_KEY)],
    ]


def _secured(directory: Path, node_id: str, *, secured: bool) -> list[str]:
    """Return what begins the command of a node that has certificates: names of files, and no secret."""
    if not secured:
        return []
    settings = {
        "TLS_CERT_FILE": directory / f"{node_id}.pem",
        "TLS_KEY_FILE": directory / f"{node_id}.key",
        "TLS_CA_FILE": directory / "ca.pem",
        "PEER_AUTH": "certificate",
        "AUTH": "required",
        "ADMIN_KEY_FILE": directory / ADMIN_KEY,
    }
    return ["env", *(f"TIDELOG_NODE_{name}={value}" for name, value in settings.items())]


def command(directory: Path, node_id: str, data: Path | None = None, *, secured: bool) -> list[str]:
    """Return the words of the command that starts a founder whose machine has the files in the same directory.

    Args:
        directory: of the files.
        node_id: of the founder.
        data: its data directory; one of its name in `directory` unless given.
        secured: whether it has certificates and asks its clients for credentials.
    """
    return [
        *_secured(directory, node_id, secured=secured),
        *("tidelog", "node", "--bootstrap", str(directory / BOOTSTRAP), "--secret-file", str(directory / SECRET)),
        *("--node-id", node_id, "--data", str(data or directory / node_id)),
    ]


def write(directory: Path, document: dict[str, Any]) -> None:
    """Write both files, or neither.

    Raises:
        CommandFailed: one of them is there, or cannot be written.
    """
    bootstrap, secret = directory / BOOTSTRAP, directory / SECRET
    for path in (bootstrap, secret):
        if path.exists():
            raise CommandFailed(f"{path} is there already and stays as it is: give another directory", EXIT_USAGE)
    written: list[Path] = []
    try:
        directory.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        write_secret(secret, replace=False)
        written.append(secret)
        write_bootstrap(bootstrap, document, replace=False)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise CommandFailed(f"{error.filename or directory} cannot be written: {error.strerror}") from error


def founder(text: str) -> dict[str, Any]:
    """Return a founder as the bootstrap file has it.

    Raises:
        CommandFailed: the text does not have the shape, and what is wrong with it.
    """
    address, *options = text.split(",")
    node_id, equals, place = address.partition("=")
    if not equals or not _ID.fullmatch(node_id) or not _is_plain(node_id):
        raise _wrong(text, "it begins with an id of up to 128 printable characters, not . or .. or -, and =")
    host, port = _host_and_port(text, place)
    found: dict[str, Any] = {"node_id": node_id, "host": host, "port": port}
    for option in options:
        key, _, value = option.partition("=")
        if not value.strip() or (key in found and key != "roles"):
            raise _wrong(text, f"{option!r} is empty, or stands twice")
        match key:
            case "zone" if value.isprintable():
                found["zone"] = value
            case "gossip_port":
                found["gossip_port"] = _port(text, value)
            case "role" if value in _ROLES:
                found.setdefault("roles", []).append(value)
            case _:
                raise _wrong(text, f"{option!r} is none of them")
    return found


def _is_plain(name: str) -> bool:
    """Whether a terminal, an option parser and a path all read a name as the same text."""
    return name.isprintable() and not name.startswith("-") and name not in {".", ".."}


def refuse_twice(founders: list[dict[str, Any]]) -> None:
    """Refuse two nodes of one name, or at one address.

    Raises:
        CommandFailed: there are.
    """
    for what, values in (
        ("the id", [one["node_id"] for one in founders]),
        ("the address", [f"{one['host']}:{one['port']}" for one in founders]),
        ("the gossip address", [f"{one['host']}:{one.get('gossip_port', one['port'])}" for one in founders]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise CommandFailed(f"{what} {twice} stands twice: each --node is another one", EXIT_USAGE)
    if all(one.get("roles") == ["ingestion"] for one in founders):
        raise CommandFailed("no node has the role persistence: nobody would store anything", EXIT_USAGE)


def _host_and_port(text: str, place: str) -> tuple[str, int]:
    """Split HOST, HOST:PORT, [IPv6] or [IPv6]:PORT."""
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(.*))?", place)
    host, port = bracketed.groups() if bracketed else (place.partition(":")[0], None)
    if not bracketed and ":" in place:
        port = place.partition(":")[2]
    if not _HOST.fullmatch(host) or not _is_plain(host):
        raise _wrong(text, f"{host!r} is no host")
    return host, PORT if port is None else _port(text, port)


def _port(text: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", value) or not 1 <= int(value) <= _PORT_MAX:
        raise _wrong(text, f"{value!r} is no port; it lies between 1 and {_PORT_MAX}")
    return int(value)


def _wrong(text: str, what: str) -> CommandFailed:
    return CommandFailed(f"--node {text}: {what}; it is {SHAPE}", EXIT_USAGE)
