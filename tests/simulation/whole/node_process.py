"""One process of a whole node, from the opening of its directory until it is killed, loses power or gives up."""

from __future__ import annotations

import asyncio
import os
from asyncio.events import _get_running_loop, _set_running_loop
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.broker.storage.sim_disk import PowerCutError
from tests.simulation.whole.gossip import SimGossip
from tests.simulation.whole.loop import WholeLoop

from tidelog_broker.base.bootstrap import open_directory
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.node.directory_admission import Founding, IdentityError
from tidelog_broker.node.join import as_founded
from tidelog_broker.node.node import Node
from tidelog_broker.node.seeds import Seed
from tidelog_broker.server.server import Server
from tidelog_broker.storage.io.errors import DamagedError, NodeDirError, OldCopyError
from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.whole.machine import Machine
    from tests.simulation.whole.network import Outgoing
    from tests.simulation.whole.world import World

DATA = Path("/data")
SECRET = b"a secret of a simulated cluster!"
FOUND_OUT_US = (1_000, 500_000)
_OF_THE_DISK = (ProtocolError, NodeDirError, OSError, PowerCutError)
"""Exceptions that a node's task may end with when the disk fails; all others are bugs."""


class SimServer(Server):
    """The native port: dispatches as shipped, and is called without sockets."""

    async def listen(self) -> int:
        process = process_of(self.broker.loop)
        process.listens = True
        return process.machine.port

    async def stop_listening(self) -> None:
        process_of(self.broker.loop).listens = False

    async def close_connections(self, deadline: float) -> None:
        """They break with the process."""

    def _broken(self, request: Any, error: Exception) -> None:
        if not isinstance(error, _OF_THE_DISK):
            raise error
        super()._broken(request, error)


class SimManagement:
    """In place of the port for operators."""

    def __init__(self, *_: object, tls: object) -> None: ...

    def start(self, host: str, port: int) -> int:
        return 0

    def stop(self) -> None: ...


class SimTasks(Tasks):
    """The shipped tasks; an unexpected exception ends the run."""

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, _OF_THE_DISK):
            raise error


class NodeProcess:
    """See the module; a process as `VirtualLoop` and `SimWorkers` want one."""

    node: Node

    def __init__(self, world: World, machine: Machine) -> None:
        self.world = world
        self.machine = machine
        self.disk = machine.disk
        self.dead = False
        self.listens = False
        self.is_up = False
        """It is admitted and serves."""
        self.gossip: SimGossip | None = None
        self.links: list[Outgoing] = []
        """All that it ever made."""
        self._shift_us = world.clock.random.randrange(10**9) - world.clock.now_us
        self._loop = WholeLoop(self)
        self.loop = self._loop.as_loop

    # ------------------------------------------------------------------------------------------ time

    @property
    def monotonic_us(self) -> int:
        return self.world.clock.now_us + self._shift_us

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Call `action` in this process, unless it is dead by then."""
        self.world.clock.after(delay_us, lambda: self.run(action))

    def run(self, action: Callable[[], None]) -> None:
        """Call `action` now; not in a dead process."""
        if self.dead:
            return
        before = _get_running_loop()
        _set_running_loop(self.loop)
        try:
            action()
        except PowerCutError:
            pass  # seen below, as it is where the shipped code has taken it for an error
        finally:
            _set_running_loop(before)
        if self.disk.is_off and not self.dead:
            self.machine.power_was_cut()

    def write_us(self) -> int:
        """Draw how long a write takes."""
        if self.dead:
            return 0
        return 10 + int(self.world.clock.random.expovariate(1.0) * self.machine.slowness * self.world.write_ms * 1000)

    def read_us(self) -> int:
        """Draw how long a read takes."""
        return 0 if self.dead else 10 + int(self.world.clock.random.expovariate(1.0) * 500)

    # ------------------------------------------------------------------------------------------ process

    @property
    def is_refused(self) -> bool:
        """Whether another node has refused this node's directory as an older copy."""
        broker = getattr(getattr(self, "node", None), "broker", None)
        return broker is not None and broker.incarnations.is_refused

    def begin(self) -> None:
        """Open the directory and start the node."""
        self.run(self._begin)

    def end(self) -> None:
        """Nothing more is done."""
        self.dead = True
        self.listens = False
        self.gossip = None
        self._loop.forget()
        for link in self.links:
            if not link.incoming.closed:  # the other end detects it some time later
                delay_us = self.world.clock.random.randint(*FOUND_OUT_US)
                link.called.after(delay_us, link.incoming.cut_off)

    def _begin(self) -> None:
        try:
            self.node = self._made()
        except (NodeDirError, OSError) as error:
            if not self.disk.is_off:
                self.machine.cannot_start(str(error))
            return
        self.machine.opened(self.node.dir)
        task = self.loop.create_task(self._live())
        task.add_done_callback(self._ended)

    def _made(self) -> Node:
        machine = self.machine
        settings = NodeSettings.model_validate(
            {
                "data": DATA,
                "node_id": machine.first_id,
                "seeds": () if machine.is_founder else ("somebody:1",),
                "host": machine.host,
                "port": machine.port,
                "io_workers": 1,
                "replication_factor_default": min(3, len(self.world.founders)),
            }
            # Decisions of other partitions are live, and a journal is compacted when more than that is dead.
            | ({"offsets_partitions": 1} if self.world.churns or self.world.hands_over else {})
        )
        bootstrap = self.world.bootstrap if machine.is_founder else None
        directory = open_directory(
            settings,
            bootstrap,
            seeds_cluster_id=None if machine.is_founder else self.world.bootstrap.cluster_id_bytes,
            replaces=machine.is_replacement,
            fs=self.disk,
        )
        seeds = () if machine.is_founder else self._seeds()
        if bootstrap is not None:
            settings = as_founded(settings, bootstrap, directory.node_id)
        return Node(
            settings, directory, founding=Founding(ClusterSecrets(SECRET), bootstrap, tuple(seeds)), fs=self.disk
        )

    def _seeds(self) -> Sequence[Seed]:
        """Return some nodes that listen, as `find_cluster` does."""
        found = [process for process in self.world.processes() if process.listens and process.node.dir.admitted]
        cluster_id = self.world.bootstrap.cluster_id_bytes
        return [
            Seed(process.node.node_id, (process.machine.host, process.machine.port), cluster_id) for process in found
        ]

    async def _live(self) -> None:
        starting = asyncio.ensure_future(self.node.start())
        stopping = asyncio.ensure_future(self.node.lifecycle.asked_to_stop())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done() and self.node.lifecycle.exit_code != os.EX_CONFIG:
            starting.cancel()  # its disk has failed: the command ends the process, too
            return
        await starting  # a node that is refused withdraws its start first
        self.is_up = True
        self.machine.world.checks.took_part(self.machine)
        await stopping

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if self.disk.is_off:
            return
        if isinstance(error, IdentityError | OldCopyError):
            self.machine.refused(str(error))
        elif error is None:
            self.machine.gave_up(self.node)
        elif isinstance(error, DamagedError):  # nothing rots here
            self.world.checks.fail("I24", f"{self.machine.node_id} finds its own files damaged: {error.message}")
        elif isinstance(error, _OF_THE_DISK):
            self.machine.cannot_start(str(error))
        else:
            raise error


def process_of(loop: object) -> NodeProcess:
    assert isinstance(loop, WholeLoop)
    return loop.node_process
