"""The ports of what `tidelog up` runs stay the same from one start to the next: they stand in DIR/up.json.

What the command line says wins over what was kept, and that over the defaults; what a 0 was answered with is kept, too.
The native ports of a cluster are not here: its bootstrap file has them, once and for all.
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
    """Which ports to use; 0 picks a free one.

    Attributes:
        native: of the first node.
        management: of each node, or of the first one alone: the others follow, 10 apart.
        http: of the gateway.
    """

    native: int = 7400
    management: tuple[int, ...] = (7401,)
    http: int = 8080


def kept_ports(data: Path) -> Ports:
    """Return the ports of the last start in a directory; the defaults where there was none.

    Raises:
        CommandFailed: the file cannot be read, or is not what `keep` has written.
    """
    path = data / _FILE
    try:
        document = json.loads(path.read_text("utf-8"))
        ports = Ports(int(document["native"]), tuple(map(int, document["management"])), int(document["http"]))
        assert all(0 <= port < 65536 for port in (ports.native, *ports.management, ports.http)), "no ports"
    except (FileNotFoundError, NotADirectoryError):
        return Ports()
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise CommandFailed(f"{path} does not say which ports were used ({error!r}): remove it") from error
    return ports


def chosen(kept: Ports, *, native: int | None, management: int | None, http: int | None) -> Ports:
    """Return the ports to use: what is given, else what was kept."""
    return replace(
        kept,
        native=kept.native if native is None else native,
        management=kept.management if management is None else (management,),
        http=kept.http if http is None else http,
    )


def keep(data: Path, *, native: int, management: Sequence[int], http: int) -> None:
    """Keep the ports for the next start.

    Raises:
        OSError: the directory cannot be written to.
    """
    path = data / _FILE
    unnamed = path.with_suffix(".new")
    unnamed.write_text(json.dumps(asdict(Ports(native, tuple(management), http))) + "\n", "utf-8")
    unnamed.replace(path)
