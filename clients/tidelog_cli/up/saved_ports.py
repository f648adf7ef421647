"""Ports and engine of `tidelog up`, stored in DIR/up.json so that they are the same after a restart.

Command-line options override stored values, which override defaults; ports picked for 0 are stored, too. The native
ports of a cluster are those in its bootstrap file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tidelog_cli.base.failures import CommandFailed

_FILE: Final = "up.json"


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports to use; 0 picks a free one.

    Attributes:
        native: native port of the first node.
        management: management port of each node, or only of the first node; the other nodes' ports follow, 10 apart.
        http: port of the gateway.
        engine: engine of new topics; empty for that of the nodes' settings.
    """

    native: int = 7400
    management: tuple[int, ...] = (7401,)
    http: int = 8080
    engine: str = ""


def kept_ports(data: Path) -> Ports:
    """Return the ports of the last start in a directory; the defaults for a new one.

    Raises:
        CommandFailed: the file is unreadable or invalid.
    """
    path = data / _FILE
    try:
        document = json.loads(path.read_text("utf-8"))
        ports = Ports(
            int(document["native"]),
            tuple(map(int, document["management"])),
            int(document["http"]),
            str(document.get("engine", "")),
        )
        assert all(0 <= port < 65536 for port in (ports.native, *ports.management, ports.http)), "not ports"
    except (FileNotFoundError, NotADirectoryError):
        return Ports()
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise CommandFailed(f"{path} has no valid ports ({error!r}): remove it to use default ports") from error
    return ports


def chosen(
    kept: Ports, *, native: int | None, management: int | None, http: int | None, engine: str | None = None
) -> Ports:
    """Return the ports and the engine to use: those of the options, otherwise the stored ones."""
    return replace(
        kept,
        native=kept.native if native is None else native,
        management=kept.management if management is None else (management,),
        http=kept.http if http is None else http,
        engine=kept.engine if engine is None else engine,
    )


def keep(data: Path, *, native: int, management: Sequence[int], http: int, engine: str = "") -> None:
    """Store the ports and the engine for the next start.

    Raises:
        OSError: the directory cannot be written to.
    """
    path = data / _FILE
    unnamed = path.with_suffix(".new")
    unnamed.write_text(json.dumps(asdict(Ports(native, tuple(management), http, engine))) + "\n", "utf-8")
    unnamed.replace(path)
