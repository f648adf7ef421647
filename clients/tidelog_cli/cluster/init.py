"""`tidelog cluster init`: write the two files that found a cluster, and print the commands that start the founders.

If nodes are reachable from other machines, the cluster uses TLS and authentication: the commands that create
certificates and the administrator's key are printed first, and each start command names these files. No command
contains a secret.

No node is contacted. Existing files are never overwritten: the founders of an older cluster could no longer
authenticate each other with other files.
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
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory; created if it does not exist.", show_default=False)
    ],
    *,
    nodes: Annotated[
        list[str],
        typer.Option("--node", metavar="NODE", help=f"A founder; may be repeated: {SHAPE}", show_default=False),
    ],
    name: Annotated[str, typer.Option(help="Display name of the cluster; by default the name of DIR.")] = "",
    from_data: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DATA",
            help="Data directory of a single node, which founds the cluster and keeps its data.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the bootstrap file and the secret of a new cluster, and print the command that starts each founder.

    A cluster of three founders survives the loss of one, of five the loss of two. Copy both files to every founder.
    With --from, a single node becomes the only founder; others join it with --seeds.
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
        document_out = {"cluster_id": document["cluster_id"], "bootstrap": str(bootstrap), "secret_file": str(secret)}
        print_json(document_out | {"preparations": issuing, "commands": commands})
        return
    sys.stdout.write(
        f"{bootstrap}: the cluster {document['name']!r}, id {document['cluster_id']}\n"
        f"{secret}: its secret, with which nodes join the cluster\n\n"
    )
    if secured:
        sys.stdout.write(
            "These nodes are reachable from other machines, so they need certificates and an administrator's key:\n\n"
        )
        _print_lines(issuing)
        sys.stdout.write(
            f"\nCopy {BOOTSTRAP}, {SECRET}, ca.pem and {ADMIN_KEY} to the machine of each founder, with its own ID.pem "
            "and ID.key; keep ca.key here. Start the founders in any order:\n\n"
        )
    else:
        sys.stdout.write("Copy both files to the machine of each founder, and start the founders in any order:\n\n")
    _print_lines(commands.values())
    sys.stdout.write(f"\nThe founders wait for each other: {waiting(len(founders))}.\n")
    if from_data is not None:
        sys.stdout.write("Stop the single node, start it with this command, and let others join:\n\n")
        _print_lines(_joining(directory, founders[0], secured=secured))
        sys.stdout.write("\nAdd copies to its topics with: tidelog topic alter TOPIC --replication-factor 3\n")


def _print_lines(lines: Iterable[Sequence[str]]) -> None:
    """Print commands with shell quoting."""
    for words in lines:
        sys.stdout.write(f"  {shlex.join(words)}\n")


def _joining(directory: Path, founder: dict[str, Any], *, secured: bool) -> list[list[str]]:
    """Return the commands for a joining node, with the placeholders ID, HOST and DATA."""
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
    """Return how many founders must have started before the cluster is ready for the first time, as text."""
    if founders == 1:
        return "the only founder does not wait"
    # `others` founders must know a founder's data directory before it is admitted, as in the nodes (docs/adr/0053).
    majority = founders // 2 + 1
    others = min(founders - 1, max(founders - majority + 1, (founders + majority - 3) // 2 + 1))
    if others == founders - 1:
        return "the cluster is ready when all of them have started"
    return f"the cluster is ready when {others + 1} of them have started, and each logs which ones it waits for"


def lone_cluster(data: Path, founders: list[dict[str, Any]]) -> str:
    """Return the cluster id of a single node, which must be the only founder.

    Raises:
        CommandFailed: the path is not a data directory, or another founder is given.
    """
    try:
        record = json.loads((data / "node.json").read_bytes())
        node_id, cluster_id = str(record["node_id"]), str(record["cluster_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        raise CommandFailed(
            f"--from {data} is not the data directory of a node: cannot read node.json: {why}", EXIT_USAGE
        ) from error
    if [one["node_id"] for one in founders] != [node_id]:
        raise CommandFailed(
            f"--from {data} belongs to node {node_id!r}, the only founder of its cluster: give exactly one --node, "
            f"{node_id}=HOST[:PORT]; other nodes can join while it runs",
            EXIT_USAGE,
        )
    return cluster_id


def preparations(directory: Path, founders: list[dict[str, Any]]) -> list[list[str]]:
    """Return the commands that create certificates of founders and the administrator's key."""
    issue = ("tidelog", "certs", "issue", str(directory), "node")
    return [
        ["tidelog", "certs", "init", str(directory)],
        *([*issue, one["node_id"], "--host", one["host"]] for one in founders),
        ["tidelog", "key", "new", "--out", str(directory / ADMIN_KEY)],
    ]


def _secured(directory: Path, node_id: str, *, secured: bool) -> list[str]:
    """Return the `env` prefix of a node's command with the paths of certificates and keys; empty unless `secured`."""
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
    """Return the command that starts a founder whose machine has the files in the same directory.

    Args:
        node_id: the founder's node id.
        data: the founder's data directory; by default a subdirectory of `directory` with its node id.
        secured: whether the cluster uses TLS and authentication.
    """
    return [
        *_secured(directory, node_id, secured=secured),
        *("tidelog", "node", "--bootstrap", str(directory / BOOTSTRAP), "--secret-file", str(directory / SECRET)),
        *("--node-id", node_id, "--data", str(data or directory / node_id)),
    ]


def write(directory: Path, document: dict[str, Any]) -> None:
    """Write the bootstrap file and a new secret, or neither of them.

    Raises:
        CommandFailed: a file exists, or cannot be written.
    """
    bootstrap, secret = directory / BOOTSTRAP, directory / SECRET
    for path in (bootstrap, secret):
        if path.exists():
            raise CommandFailed(f"{path} already exists: choose another directory", EXIT_USAGE)
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
    """Parse the value of an option --node (see `SHAPE`) into a founder's entry in the bootstrap file.

    Raises:
        CommandFailed: the text is invalid; the message has the cause.
    """
    address, *options = text.split(",")
    node_id, equals, place = address.partition("=")
    if not equals or not _ID.fullmatch(node_id) or not _is_plain(node_id):
        raise _wrong(
            text,
            "must begin with an id and =; an id has 1 to 128 printable characters except spaces and , : / =, does not "
            "begin with -, and is not . or ..",
        )
    host, port = _host_and_port(text, place)
    node: dict[str, Any] = {"node_id": node_id, "host": host, "port": port}
    for option in options:
        key, _, value = option.partition("=")
        if not value.strip():
            raise _wrong(text, f"option {option!r} has no value")
        if key in node and key != "roles":
            raise _wrong(text, f"option {option!r} is repeated")
        match key:
            case "zone" if value.isprintable():
                node["zone"] = value
            case "gossip_port":
                node["gossip_port"] = _port(text, value)
            case "role" if value in _ROLES:
                node.setdefault("roles", []).append(value)
            case "zone" | "role":
                raise _wrong(text, f"invalid value: {option!r}")
            case _:
                raise _wrong(text, f"unknown option: {option!r}")
    return node


def _is_plain(name: str) -> bool:
    """Return whether a name is safe as terminal output, as an option value and as a path."""
    return name.isprintable() and not name.startswith("-") and name not in {".", ".."}


def refuse_twice(founders: list[dict[str, Any]]) -> None:
    """Refuse founders with the same id or address, and founders of which none stores records.

    Raises:
        CommandFailed: an id or address is repeated, or no founder has the role persistence.
    """
    for what, values in (
        ("id", [one["node_id"] for one in founders]),
        ("address", [f"{one['host']}:{one['port']}" for one in founders]),
        ("gossip address", [f"{one['host']}:{one.get('gossip_port', one['port'])}" for one in founders]),
    ):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise CommandFailed(f"more than one --node has the {what} {twice}: give each node its own", EXIT_USAGE)
    if all(one.get("roles") == ["ingestion"] for one in founders):
        raise CommandFailed(
            "no --node has the role persistence, and one is needed to store records; omit role=ingestion for one of "
            "them",
            EXIT_USAGE,
        )


def _host_and_port(text: str, place: str) -> tuple[str, int]:
    """Split HOST, HOST:PORT, [IPv6] or [IPv6]:PORT."""
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(.*))?", place)
    host, port = bracketed.groups() if bracketed else (place.partition(":")[0], None)
    if not bracketed and ":" in place:
        port = place.partition(":")[2]
    if not _HOST.fullmatch(host) or not _is_plain(host):
        raise _wrong(text, f"{host!r} is not a host name or IP address (write IPv6 as [::1])")
    return host, PORT if port is None else _port(text, port)


def _port(text: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", value) or not 1 <= int(value) <= _PORT_MAX:
        raise _wrong(text, f"{value!r} is not a port from 1 to {_PORT_MAX}")
    return int(value)


def _wrong(text: str, what: str) -> CommandFailed:
    return CommandFailed(f"--node {text}: {what}; expected {SHAPE}", EXIT_USAGE)
