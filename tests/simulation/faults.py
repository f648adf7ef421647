"""Faults and their schedule: crashes, cuts, pauses, full and failing disks, lost disks, new nodes, planned changes.

Each fault is drawn with its repair. Only the machines that the scenario gives up lose durable data for good; they are
drawn once, at the start (see `scenario`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.simulation.machine import AGED_ERROR_US, Machine
from tests.simulation.rot import lose_directory, lose_segment, rot, rot_sealed
from tests.simulation.scenario import FURTHER_MIXTURES, LOST_SEGMENTS, MIXTURES, RESTARTED_OWNER, SCRIPTS, UNSAFE
from tests.simulation.scripts import Scripts
from tests.simulation.surroundings import Wishes

from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.world import World

KINDS_MIN = 3
"""With fewer kinds of faults than this, all kinds happen."""


class Faults:
    """See the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.clock.random
        self._stopped = False
        self._scripts = Scripts(world, self)
        self._joins = world.scenario.joins
        self.lied = False
        """Whether a node has served wrong content: logs made of it are set aside."""
        self._bad = set(
            self._random.sample(
                [machine.name for machine in world.machines], min(world.scenario.bad_machines, len(world.machines))
            )
        )
        kinds: dict[str, tuple[Callable[[], None], int]] = {
            "kill": (self._kill, 10),
            "power off": (self._power_off, 8),
            "crash in write": (self._crash_in_write, 10),
            "pause": (self._pause, 8),
            "isolate": (self._isolate, 10),
            "one way": (self._one_way, 6),
            "halves": (self._halves, 4),
            "reset": (self._reset, 3),
            "old messages": (self._old_messages, 8),
            "loss": (self._loss_burst, 4),
            "disk full": (self._disk_full, 4),
            "disk fails": (self._disk_fails, 2),
            "wipe": (self._wipe, 2),
            "rot": (self._rot, 4),
            "lost directory": (self._lose_directory, 2),
            "lie": (self._lie, 3),
            "join": (self._join, 2),
            "roll over": (self._roll_over, 10),
            "wall clock": (self._wall_clock, 2),
            "everybody down": (self._everybody_down, 2),
            **self._scripts.kinds(),
        }
        if world.scenario.changes:
            kinds["wishes"] = (self._wishes, 12)
        if world.scenario.scrubs:
            kinds["rot sealed"] = (self._rot_sealed, 12)
        if world.scenario.mixture == LOST_SEGMENTS:
            kinds["lost segment"] = (self._lose_segment, 12)
        self._kinds = [kinds[name] for name in self._mixture(list(kinds))]

    def _mixture(self, kinds: list[str]) -> list[str]:
        """Draw the kinds of faults of this run: with everything at once, rare combinations never come."""
        mixture = self._world.scenario.mixture
        if mixture in {*SCRIPTS, RESTARTED_OWNER}:
            return [mixture]
        few = MIXTURES.get(mixture) or FURTHER_MIXTURES.get(mixture)
        if few is not None:
            return list(few)
        kinds = [kind for kind in kinds if kind not in {UNSAFE, RESTARTED_OWNER}]
        chosen = [kind for kind in kinds if self._random.random() < 0.5]
        if self._world.scenario.changes and "wishes" not in chosen:
            chosen.append("wishes")
        if self._world.scenario.scrubs and "rot sealed" not in chosen:
            chosen.append("rot sealed")
        if self._world.scenario.retention_ms:
            chosen += [kind for kind in ("wall clock", "wall clock", "roll over") if kinds]
        return chosen if len(chosen) >= KINDS_MIN else kinds

    def start(self) -> None:
        """Begin."""
        self._later(self._world.scenario.fault_gap_ms, self._next)

    def stop(self) -> None:
        """Undo all faults: all machines run, no disk is full, no process is paused."""
        self._stopped = True
        self._scripts.stop()
        for machine in self._world.machines:
            machine.lies = False
            self._heal_disk(machine)
            if machine.process is not None and machine.process.paused:
                machine.process.resume(0, clock_stood_still=False)
            machine.start()

    def may_lose(self, machine: Machine) -> bool:
        """Whether a machine may lose data that it reported as durable."""
        return machine.name in self._bad

    def _later(self, mean_ms: float, action: Callable[[], None]) -> None:
        self._world.clock.after(1000 + int(self._random.expovariate(1.0) * mean_ms * 1000), action)

    def _next(self) -> None:
        if self._stopped:
            return
        kinds, weights = zip(*self._kinds, strict=True)
        self._random.choices(kinds, weights)[0]()
        self._later(self._world.scenario.fault_gap_ms, self._next)

    def _machine(self) -> Machine:
        """Draw a machine, often one that owns something."""
        owners = [machine for machine in self._world.machines if _owns(machine)]
        return self._random.choice(owners if owners and self._random.random() < 0.5 else self._world.machines)

    def loser(self) -> Machine | None:
        """Draw a machine that may lose data that it reported as durable; None if none may."""
        losers = [machine for machine in self._world.machines if self.may_lose(machine)]
        return self._random.choice(losers) if losers else None

    def _note(self, what: str, *names: str) -> None:
        self._world.clock.note("fault", what, *names)

    # ------------------------------------------------------------------------------------------ processes

    def _restart_later(self, machine: Machine) -> None:
        def again() -> None:
            if not self._stopped:
                machine.start()

        self._later(self._random.choice([30, 300, 1500]), again)

    def _kill(self) -> None:
        machine = self._machine()
        machine.stop("killed")
        self._restart_later(machine)

    def _power_off(self) -> None:
        machine = self._machine() if self._world.survives_power_cuts() else self.loser()
        if machine is not None:
            machine.power_off("power off")
            self._restart_later(machine)

    def _crash_in_write(self) -> None:
        machine = self._machine()
        power = self._random.random() < 0.5  # unless that is more than is to be survived when it comes
        if machine.process is not None:
            machine.crash_in_write(self._random.randrange(10), power=power)
            self._note("crash in write", machine.node_id)
            for pause_ms in (500, 2000):
                self._world.clock.after(
                    pause_ms * 1000, lambda: None if self._stopped else self._restart_later(machine)
                )

    def _everybody_down(self) -> None:
        power = self._world.survives_power_cuts() and self._random.random() < 0.5
        for machine in self._world.machines:
            if self._random.random() < 0.8:
                if power:
                    machine.power_off("all power off")
                else:
                    machine.stop("all killed")
                self._restart_later(machine)

    def _pause(self) -> None:
        machine = self._machine()
        process = machine.running
        if process is None:
            return
        self._note("pause", machine.node_id)
        process.pause()
        stood_still = self._random.random() < 0.5
        began_us = self._world.clock.now_us

        def again() -> None:
            if process.paused and not process.dead:
                self._note("resume", process.node_id)
                process.resume(self._world.clock.now_us - began_us, clock_stood_still=stood_still)

        self._later(self._random.choice([50, 400, 1500]), again)

    def _wall_clock(self) -> None:
        """Set a clock, by seconds or by days."""
        most_us = 1_000_000 * self._random.choice([5, 5, 3600, 20 * 86_400])
        machine = self._machine()
        if self._world.scenario.retention_ms:
            most_us *= 18  # a year at most
            jumps = (-most_us, most_us, self._random.randrange(AGED_ERROR_US), self._random.randrange(AGED_ERROR_US))
            machine.wall_error_us = self._random.choice(jumps)
        else:
            machine.wall_error_us += self._random.randint(-most_us, most_us)
        self._note("wall clock", machine.node_id)

    # ------------------------------------------------------------------------------------------ network

    def _cut(self, links: list[tuple[str, str]], what: str) -> None:
        network = self._world.network
        for link in links:
            network.cut(*link)
        self._note(what, *(f"{sender}>{receiver}" for sender, receiver in links))

        def mend() -> None:
            for link in links:
                network.mend(*link)

        self._later(self._random.choice([200, 800, 2000]), mend)

    def _names(self) -> list[str]:
        return [machine.node_id for machine in self._world.machines]

    def _isolate(self) -> None:
        one = self._machine().node_id
        others = [name for name in self._names() if name != one]
        self._cut([link for other in others for link in ((one, other), (other, one))], "isolate")
        if self._random.random() < 0.4:
            self._later(300, lambda: None if self._stopped else self._roll_over())

    def _one_way(self) -> None:
        one, *rest = self._random.sample(self._names(), self._random.choice([2, len(self._names())]))
        outward = self._random.random() < 0.5
        self._cut([(one, other) if outward else (other, one) for other in rest], "one way")

    def _halves(self) -> None:
        names = self._names()
        side = set(self._random.sample(names, len(names) // 2))
        self._cut([(a, b) for a in names for b in names if (a in side) != (b in side)], "halves")

    def _reset(self) -> None:
        self._world.network.reset(*self._random.sample(self._names(), 2))

    def _old_messages(self) -> None:
        """Let messages arrive once more that were sent long ago."""
        self._note("old messages")
        self._world.network.repeat_old(self._random.randint(1, 40))

    def _loss_burst(self) -> None:
        network = self._world.network
        before = self._world.scenario.loss
        network.loss = 0.4

        def over() -> None:
            network.loss = 0.0 if self._stopped else before

        self._later(400, over)

    # ------------------------------------------------------------------------------------------ disks

    def _heal_disk(self, machine: Machine) -> None:
        machine.disk.free_bytes = None
        machine.disk.fail = lambda operation, path: None
        machine.disk.cut_at = None

    def _disk_full(self) -> None:
        machine = self._machine()
        if machine.disk.free_bytes is None:
            machine.disk.free_bytes = self._random.choice([0, 300, 2000])
            self._note("disk full", machine.node_id)

            def freed() -> None:
                machine.disk.free_bytes = None

            self._later(600, freed)

    def _disk_fails(self) -> None:
        """Let a sync fail, of the process or of its next start, or all from there on; perhaps cut the power after that.

        Until then the bytes of a failed sync can be read, see `SimDisk`.
        """
        machine = self._machine()
        left, once = self._random.choice([0, 0, 1, 3]), self._random.random() < 0.7

        def fail(operation: str, path: Path) -> OSError | None:
            nonlocal left
            if operation != "sync":
                return None
            left -= 1
            failing = left == -1 if once else left < 0
            return OSError(errno.EIO, "the simulated disk fails") if failing else None

        machine.disk.fail = fail
        self._note("disk fails", machine.node_id)
        for _ in range(3):
            self._restart_later(machine)
        if self._world.scenario.flush == pb.ALWAYS or self.may_lose(machine):
            self._later(self._random.choice([300, 1500]), lambda: self._power_fails(machine))

    def _power_fails(self, machine: Machine) -> None:
        if not self._stopped and machine.disk.any_lost:
            machine.power_off("power off after a failed sync")
            self._restart_later(machine)

    def _wipe(self) -> None:
        """Replace a disk; the old node id never comes back, and is removed from the registry later."""
        machine = self.loser()
        if machine is not None:
            self.replace_disk(machine)

    def replace_disk(self, machine: Machine) -> None:
        """Give a machine an empty disk, and make it another node, unless that is more than is to be survived."""
        if _is_named_twice(machine, self._world.machines):
            return
        old = machine.node_id
        machine.wipe()
        self._note("wipe", old, machine.node_id)

        def forget() -> None:
            if machine.node_id != old:
                self._world.registered = [name for name in self._world.registered if name != old]

        def join() -> None:
            if machine.node_id not in self._world.registered:
                self._world.join(machine)
            machine.start()

        self._world.clock.after(300_000, forget)
        self._world.clock.after(400_000, join)

    def _rot(self) -> None:
        """Flip a bit in a log or a journal of a machine that is down."""
        machine = self.loser()
        if machine is None:
            return
        machine.stop("for rot")
        if where := rot(machine.disk, self._random):
            self._note("rot", machine.node_id, where)
        self._restart_later(machine)

    def _rot_sealed(self) -> None:
        """Flip a bit in a segment that takes nothing more, under a node that runs."""
        machine = self.loser()
        process = machine.running if machine is not None else None
        if process is not None and (where := rot_sealed(process, self._random)):
            self._note("rot sealed", process.node_id, where)

    def _lose_directory(self) -> None:
        """Take a partition's or an epoch's directory from a machine that is down."""
        machine = self.loser()
        if machine is None:
            return
        machine.stop("for a loss")
        if where := lose_directory(machine.disk, self._random):
            self._note("lost directory", machine.node_id, where)
        self._restart_later(machine)

    def _lose_segment(self) -> None:
        """Take the first segment file of an ended epoch from a machine that is down."""
        machine = self.loser()
        if machine is None:
            return
        machine.stop("for a lost segment")
        if where := lose_segment(machine.disk, self._random):
            self._note("lost segment", machine.node_id, where)
        self._restart_later(machine)

    def _lie(self) -> None:
        """Let a machine serve other content than was decided, with checksums that are right."""
        machine = self.loser()
        if machine is not None:
            machine.lies = self.lied = True
            self._note("lie", machine.node_id)

            def honest() -> None:
                machine.lies = False

            self._later(800, honest)

    # ------------------------------------------------------------------------------------------ planned

    def _join(self) -> None:
        if self._joins > 0:
            self._joins -= 1
            self._note("join")
            self._world.add_machine()

    def _wishes(self) -> None:
        """Want other copies, another quorum or flush, from the next epochs on; perhaps one begins for it."""
        copies = self._random.choice([2, 3, 3, 4])
        quorum = self._random.randint(copies // 2 + 1, copies)
        self._world.wishes = Wishes(copies, quorum, self._random.choice([pb.ALWAYS, pb.ALWAYS, pb.INTERVAL, pb.NEVER]))
        self._note("wishes", str(self._world.wishes))
        if self._random.random() < 0.6:
            self._roll_over()

    def _roll_over(self) -> None:
        """Let an owner end its epoch by itself, sometimes to hand the partition to another node."""
        for machine in self._random.sample(self._world.machines, len(self._world.machines)):
            process = machine.running
            if process is None:
                continue
            for copy in process.partitions.values():
                if copy.replica.state.owner is not None:
                    neighbours = process.cluster
                    active = copy.replica.state.active
                    nodes = neighbours.placement(copy.key, active, keep=self._random.random() < 0.5)
                    owner = self._random.choice([node for node in nodes if neighbours.alive(node)] or list(nodes))
                    if self._random.random() < 0.6 and process.node_id in nodes:
                        owner = process.node_id
                    self._note("roll over", copy.name, owner, str(nodes))
                    copy.roll_over(neighbours.plan_of(owner, nodes))
                    return


def _is_named_twice(machine: Machine, machines: Sequence[Machine]) -> bool:
    """Whether an open epoch still counts on a copy that went with a former disk of this machine.

    With the disk that it has now, that would be two copies of one epoch: more than is promised to be survived.
    """
    return any(
        name != machine.node_id and name.split("+")[0] == machine.name
        for other in machines
        if other.process is not None
        for copy in other.process.partitions.values()
        if not copy.replica.state.halted_permanently
        for name in copy.replica.state.active.placement
    )


def _owns(machine: Machine) -> bool:
    process = machine.running
    return process is not None and any(copy.replica.state.owner is not None for copy in process.partitions.values())
