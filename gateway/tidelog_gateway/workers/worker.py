"""One worker: `python -m tidelog_gateway.workers.worker NUMBER CONTROL LIFELINE LISTENER…`, started by the parent.

CONTROL, LIFELINE and LISTENER are inherited descriptors: the socket to the parent, a pipe that reaches its end when the
parent ends, and the listening sockets of all workers, of which the NUMBERth is its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from tidelog.cluster.contexts import Context
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.worker_channel import frames
from tidelog_proto.process.crashes import prepare_for_crashes
from tidelog_proto.process.garbage_collection import no_collections
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.process.standard_streams import queued_streams

ORPHAN_EXTRA_S: Final = 5.0
"""Time after `stop_timeout_s` at which a worker without a parent is ended in any case."""


def main(arguments: Sequence[str]) -> int:
    """Serve until the parent stops the worker, or has ended; return the exit code."""
    number, control_fd, lifeline, *listener_fds = map(int, arguments)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # the worker shares the parent's terminal
    prepare_for_crashes()
    control = socket.socket(fileno=control_fd)
    begin = _begin(control)
    settings = GatewaySettings.model_validate(begin["settings"])
    context = None if begin["context"] is None else Context(**_with_tuple(begin["context"]))
    end = partial(_end_with_parent, lifeline, settings.stop_timeout_s + ORPHAN_EXTRA_S)
    threading.Thread(target=end, name="lifeline", daemon=True).start()
    listeners = [socket.socket(fileno=descriptor) for descriptor in listener_fds]

    with no_collections():
        from tidelog_gateway.workers.worker_server import serve_as_worker  # noqa: PLC0415 # slow: the parent is watched by now

    try:
        serve_as_worker(settings, context, control, listeners, number - 1)
    except SettingsError as error:
        sys.stderr.write(f"tidelog gateway: {error}\n")
        return 2
    return 0


def _begin(control: socket.socket) -> dict[str, Any]:
    """Receive the parent's first frame."""
    control.setblocking(True)
    kind, length = frames.frame_length(_receive_exactly(control, frames.HEADER.size))
    assert kind == frames.BEGIN, kind
    document: dict[str, Any] = json.loads(_receive_exactly(control, length))
    control.setblocking(False)
    return document


def _receive_exactly(control: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = control.recv(size - len(received))
        if not chunk:
            sys.exit(1)  # the parent has ended
        received += chunk
    return received


def _with_tuple(context: dict[str, Any]) -> dict[str, Any]:
    return context | {"bootstrap": tuple(context["bootstrap"])}


def _end_with_parent(lifeline: int, within_s: float) -> None:
    """Wait for the parent's end, stop gracefully, and end in any case after `within_s`."""
    while os.read(lifeline, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(within_s)
    os._exit(1)


def run() -> int:
    """Run the worker as a program."""
    with queued_streams():
        return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
