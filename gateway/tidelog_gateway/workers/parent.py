"""The parent process of `tidelog gateway --workers N`: starts, replaces and stops the workers.

The parent binds one listening socket for each worker with SO_REUSEPORT, so that the kernel distributes connections
evenly, and holds all of them open. Connections that a worker had not accepted when it ended are therefore not lost:
until its replacement serves, another worker also accepts from that socket. The same happens for a worker whose event
loop hangs; after `HANG_TICKS` it is killed.

The parent serves no requests and does not import the application: it waits for signals, ends of workers, and frames.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tidelog.cluster.contexts import Context
from tidelog_gateway.metrics.merged_metrics import Families, family, lasting, merged
from tidelog_gateway.server.listeners import listen_for_each
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.worker_channel import frames
from tidelog_gateway.workers.worker_process import WorkerProcess, describe_end, lifeline_pipe
from tidelog_gateway.workers.worker_settings import worker_settings_of
from tidelog_proto.process.stop_signals import keep

log = logging.getLogger(__name__)

READY_TICKS_MAX: Final = 60
"""Seconds after which a worker that has not become ready is killed."""
HANG_TICKS: Final = 20
"""Seconds without a heartbeat after which a worker is killed. They are counted while the parent runs, so a suspension
of the machine counts as one."""
BACK_OFF_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses before a worker is replaced, by the number of consecutive early ends."""
STEADY_TICKS: Final = 60
"""Seconds of serving after which the earlier failures of a worker no longer delay its replacement."""
COLLECT_S: Final = 1.0
"""Longest wait for the metrics of workers; for a late worker its previous metrics are used."""
STOP_EXTRA_S: Final = 5.0
"""Time after `stop_timeout_s` at which the remaining workers are killed."""
SECOND_SIGNAL_S: Final = 2.0
"""Time after a second signal at which workers are killed."""
TICK_S: Final = 1.0


def run_workers(settings: GatewaySettings, context: Context | None) -> int:
    """Serve with several workers until a signal; return the exit code.

    Raises:
        OSError: the address cannot be bound.
    """
    listeners = listen_for_each(settings)
    port: int = listeners[0].getsockname()[1]

    def ready() -> None:
        sys.stdout.write(json.dumps({"event": "ready", "http_port": port}) + "\n")
        sys.stdout.flush()

    return Parent(settings, context, listeners, ready).run()


class _WorkerSlot:
    """The state of one worker number.

    Attributes:
        worker: the running process; None while none runs.
        failures: number of consecutive early ends.
        start_at: when the next process is started, on the clock of `time.monotonic`.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: WorkerProcess | None = None
        self.failures = 0
        self.start_at = 0.0


class Parent:
    """The parent process.

    Args:
        settings: settings of the whole gateway.
        context: has the gateway's own credentials; None: those of the environment.
        listeners: one for each worker.
        ready: called when all workers serve.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        context: Context | None,
        listeners: Sequence[socket.socket],
        ready: Callable[[], None],
    ) -> None:
        self._settings = settings
        begin = {
            "settings": worker_settings_of(settings).model_dump(mode="json"),
            "context": None if context is None else asdict(context),
        }
        self._begin = json.dumps(begin).encode()
        self._listeners = listeners
        self._tell_ready = ready
        self._slots = [_WorkerSlot(number) for number in range(1, len(listeners) + 1)]
        self._selector = selectors.DefaultSelector()
        self._lifeline, self._life = lifeline_pipe()
        self._started_s = _start_s()
        self._retired: Families = {}
        self._restarts = 0
        self._is_up = False
        self._code: int | None = None
        """The parent's exit code; None until the parent begins to stop."""
        self._kill_at = 0.0
        self._signals: list[int] = []
        self._was_told = False
        self._requesters: list[WorkerProcess] = []
        self._awaited: set[WorkerProcess] = set()
        self._collect_until = 0.0

    def run(self) -> int:
        """Run until a signal, or until no worker can be started; return the exit code."""
        with self._woken_by_signals():
            self._start(self._slots[0])
            tick_at = time.monotonic() + TICK_S
            while self._code is None or self._running():
                for key, _ in self._selector.select(max(0.0, self._wake_at(tick_at) - time.monotonic())):
                    self._process_events(key)
                self._take_signals()
                self._reap()
                now = time.monotonic()
                if now >= tick_at:
                    tick_at = now + TICK_S
                    self._tick()
                if self._awaited and now >= self._collect_until:
                    self._awaited.clear()
                    self._answer()
                if self._code is None:
                    self._start_due(now)
                elif now >= self._kill_at:
                    self._kill_remaining()
            os.close(self._life)
            os.close(self._lifeline)
        return self._code

    # ---------------------------------------------------------------------------------------------- the event loop

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        """Let signals and ends of processes wake the loop during the block."""
        reading, writing = socket.socketpair()
        with reading, writing:
            reading.setblocking(False)
            writing.setblocking(False)
            self._selector.register(reading, selectors.EVENT_READ)
            before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)}
            for number in before:
                signal.signal(number, self._note_signal)
            old = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
            try:
                yield
            finally:
                signal.set_wakeup_fd(old)
                if self._was_told:  # The process is ending: later stop signals are ignored.
                    keep({number: before.pop(number) for number in (signal.SIGTERM, signal.SIGINT)})
                for number, handler in before.items():
                    signal.signal(number, handler)
                self._selector.close()

    def _note_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._was_told = True
            self._signals.append(number)

    def _wake_at(self, tick_at: float) -> float:
        due = [slot.start_at for slot in self._slots if self._code is None and self._is_due_later(slot)]
        collect = [self._collect_until] if self._awaited else []
        kill = [] if self._code is None else [max(self._kill_at, time.monotonic() + 0.01)]
        return min(tick_at, *due, *collect, *kill, tick_at)

    def _is_due_later(self, slot: _WorkerSlot) -> bool:
        return slot.worker is None and (self._is_up or slot is self._slots[0])

    def _process_events(self, key: selectors.SelectorKey) -> None:
        worker = key.data
        if worker is None:
            with contextlib.suppress(BlockingIOError):
                while key.fileobj.recv(1024):  # type: ignore[union-attr]  # the wakeup socket of signals
                    pass
            return
        worker.send_on()
        self._receive_frames(worker)
        self._watch(worker)

    def _watch(self, worker: WorkerProcess) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent_bytes else 0)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.modify(worker.control, events, worker)

    # ------------------------------------------------------------------------------------------------- the workers

    def _running(self) -> list[WorkerProcess]:
        return [slot.worker for slot in self._slots if slot.worker is not None]

    def _serving(self) -> list[WorkerProcess]:
        return [worker for worker in self._running() if worker.is_serving]

    def _start_due(self, now: float) -> None:
        first = self._slots[0].worker
        for slot in self._slots:
            may_start = self._is_up or slot is self._slots[0] or (first is not None and first.is_ready)
            if slot.worker is None and may_start and now >= slot.start_at:
                self._start(slot)

    def _start(self, slot: _WorkerSlot) -> None:
        try:
            worker = WorkerProcess(slot.number, self._listeners, self._lifeline)
        except OSError as error:  # out of processes, descriptors or memory
            next_step = "trying again" if self._serving() else "stopping the gateway, because no other worker serves"
            why = error.strerror
            log.error(  # noqa: TRY400 - one line
                "worker %d cannot be started: %s; check the free memory and the limits of processes (ulimit -u) and "
                "open files (ulimit -n); %s",
                slot.number,
                why,
                next_step,
            )
            if not self._serving():
                self._stop(1)
            self._wait_longer(slot)
            return
        slot.worker = worker
        self._selector.register(worker.control, selectors.EVENT_READ, worker)
        self._send(worker, frames.BEGIN, self._begin)

    def _send(self, worker: WorkerProcess, kind: bytes, payload: bytes = b"") -> None:
        worker.send(kind, payload)
        if worker.unsent_bytes:
            self._watch(worker)

    def _receive_frames(self, worker: WorkerProcess) -> None:
        try:
            for kind, payload in worker.received():
                self._take(worker, kind, payload)
        except (frames.FrameError, ValueError) as error:
            log.error("%s sent an invalid frame (%s); killing it", worker.name, error)  # noqa: TRY400 - one line
            worker.kill()

    def _take(self, worker: WorkerProcess, kind: bytes, payload: bytes) -> None:
        was_silent = not worker.is_serving
        match kind:
            case frames.READY:
                worker.is_ready, worker.ticks = True, 0
                self._share_duties()
                self._check_up()
            case frames.HEARTBEAT:
                worker.ticks = 0
                if was_silent and worker.is_serving:
                    self._share_duties()
            case frames.STOPPING:
                worker.is_stopping = True
                self._share_duties()
            case frames.METRICS:
                worker.metrics = json.loads(payload)
                if worker in self._awaited:
                    self._awaited.discard(worker)
                    self._answer()
            case frames.REQUEST_METRICS:
                self._collect(worker)
            case frames.SAMPLE:
                for other in self._running():
                    if other is not worker and other.is_ready:
                        self._send(other, frames.SAMPLE, payload)
            case _:
                raise ValueError(f"its kind {kind!r} is unknown")

    def _check_up(self) -> None:
        if not self._is_up and self._code is None and len(self._serving()) == len(self._slots):
            self._is_up = True
            self._tell_ready()

    def _share_duties(self) -> None:
        """Send each worker its duties: further sockets to accept from, and which one samples topics."""
        serving = self._serving()
        if not serving:
            return
        accepts: dict[WorkerProcess, list[int]] = {worker: [] for worker in serving}
        for index, slot in enumerate(self._slots):
            if slot.worker not in accepts:
                accepts[serving[index % len(serving)]].append(index)
        for worker, indexes in accepts.items():
            duties = {"accepts": indexes, "samples": worker is serving[0], "serving": len(serving)}
            self._send(worker, frames.DUTIES, json.dumps(duties).encode())

    def _tick(self) -> None:
        before = self._serving()
        for worker in self._running():
            worker.ticks += 1
            worker.served_ticks += worker.is_serving
            if not worker.is_ready and worker.ticks == READY_TICKS_MAX:
                log.error("%s was not ready within %d s; killing it", worker.name, READY_TICKS_MAX)
                worker.kill()
            elif worker.is_ready and not worker.is_stopping and worker.ticks == HANG_TICKS:
                log.error("%s has sent no heartbeat for %d s; killing it", worker.name, HANG_TICKS)
                worker.kill()
        if self._serving() != before:
            self._share_duties()

    # -------------------------------------------------------------------------------------------- exits and signals

    def _reap(self) -> None:
        for slot in self._slots:
            worker = slot.worker
            code = None if worker is None else worker.ended()
            if worker is not None and code is not None:
                self._receive_frames(worker)
                self._selector.unregister(worker.control)
                worker.close()
                slot.worker = None
                self._retired = merged([self._retired, lasting(worker.metrics)])
                self._awaited.discard(worker)
                self._after_end(slot, worker, code)
                self._answer()

    def _after_end(self, slot: _WorkerSlot, worker: WorkerProcess, code: int) -> None:
        if self._code is not None:
            return
        if not worker.is_ready and not (self._is_up and self._serving()):
            what = "could not start" if not self._is_up else "could not be replaced, and no other worker serves"
            log.error(
                "%s %s: it %s; stopping the gateway; see the messages of the worker above",
                worker.name,
                what,
                describe_end(code),
            )
            self._stop(code if code > 0 else 1)
            return
        if worker.served_ticks >= STEADY_TICKS:
            slot.failures = 0
        wait_s = self._wait_longer(slot)
        self._restarts += 1
        log.warning(
            "%s %s; starting another one %s", worker.name, describe_end(code), f"in {wait_s:g} s" if wait_s else "now"
        )
        self._share_duties()

    def _wait_longer(self, slot: _WorkerSlot) -> float:
        wait_s = BACK_OFF_S[min(slot.failures, len(BACK_OFF_S) - 1)]
        slot.failures += 1
        slot.start_at = time.monotonic() + wait_s
        return wait_s

    def _take_signals(self) -> None:
        signals, self._signals = self._signals, []
        for _ in signals:
            if self._code is None:
                self._stop(0)
            else:
                for worker in self._running():
                    worker.signal(signal.SIGINT)  # After a SIGTERM it makes the worker stop at once.
                self._kill_at = min(self._kill_at, time.monotonic() + SECOND_SIGNAL_S)

    def _stop(self, code: int) -> None:
        self._code = code
        self._kill_at = time.monotonic() + self._settings.stop_timeout_s + STOP_EXTRA_S
        for listener in self._listeners:
            listener.close()
        for worker in self._running():
            worker.signal(signal.SIGTERM)

    def _kill_remaining(self) -> None:
        for worker in self._running():
            log.error(
                "%s has not stopped in time (stop_timeout_s = %g); killing it",
                worker.name,
                self._settings.stop_timeout_s,
            )
            worker.kill()
            self._code = self._code or 1
        self._kill_at = float("inf")

    # ------------------------------------------------------------------------------------------------- the metrics

    def _collect(self, requester: WorkerProcess) -> None:
        """Request the metrics of all workers; requests of other workers meanwhile share the answer."""
        self._requesters.append(requester)
        if not self._awaited:
            self._awaited = set(self._serving())
            self._collect_until = time.monotonic() + COLLECT_S
            for worker in self._serving():
                self._send(worker, frames.COLLECT)
            self._answer()

    def _answer(self) -> None:
        if self._awaited or not self._requesters:
            return
        parts = [*(worker.metrics for worker in self._running()), self._retired, self._own()]
        payload = json.dumps(merged(parts)).encode()
        requesters, self._requesters = self._requesters, []
        for requester in set(requesters):
            self._send(requester, frames.MERGED, payload)

    def _own(self) -> Families:
        """Return the parent's own metrics, without documentation, since workers have the same families."""

        def one(kind: str, name: str, value: float) -> dict[str, Any]:
            return family(kind, "", {json.dumps([name, {}], separators=(",", ":")): value})

        return {
            "process_start_time_seconds": one("gauge", "process_start_time_seconds", self._started_s),
            "tidelog_gateway_workers": one("gauge", "tidelog_gateway_workers", len(self._serving())),
            "tidelog_gateway_worker_restarts": one("counter", "tidelog_gateway_worker_restarts_total", self._restarts),
        }


def _start_s() -> float:
    """Return the start time of this process, in seconds since 1970, computed like the metrics library does."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
