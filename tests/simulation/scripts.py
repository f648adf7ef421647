"""Sequences of faults that random runs hardly produce, because several events must happen in one order.

Each script is a generator: it does something to the world and yields how many milliseconds to wait. It picks its nodes
by what they are at that moment and gives up where they are not what it needs; everything else (who takes over, what is
published meanwhile, when exactly) is left to chance as ever. Nothing here is more than the network, the disks and the
processes may do anyhow, so a script breaks nothing that is right. One script runs at a time.

    stale tail       a replica has a tail that is truncated; its report about it arrives in the next epoch
    crossing         the owner's planned change arrives where a takeover has been decided meanwhile
    late seal        the owner, which was only cut off for a while, promises its end; some replicas hear only from it
    late cut         a replica with a tail that no other node has learns the ends of two epochs at once
    slow fetch       the log for one proposal arrives when another ballot is promised
    slow fetch        the log from the owner arrives when the epoch's end is promised to another node
    cut entry        a replica dies between the writes by which it enters the next epoch
    wiped holder     one of the few that hold what is acknowledged loses its disk ...
    rotten holder    ... or finds it damaged ...
    emptied holder   ... or has lost the directory of its copy ...
    rebooted holder  ... or loses power under a flush other than ALWAYS, and the others are away
    reboot cut short     the same, and it is killed before all of its logs are open again
    rebooted follower    the same, and before they are away the owner answers it once: the rest is on its way
    restarted owner      the same, or it loses the directory of its copy; the owner, asked for the rest, starts again
                         without what it had not written, and answers
    lights out       all machines lose power as soon as an epoch's end is decided, under a flush other than ALWAYS
    unsafe recover   see `recoveries`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from tests.simulation.machine import Machine
from tests.simulation.recoveries import Recoveries
from tests.simulation.rot import lose_directory, rot
from tests.simulation.scenario import LIGHTS_OUT, RESTARTED_OWNER, UNSAFE
from tests.simulation.stage import Cast, Script

from tidelog_broker.core.replication.replica_state import syncs_appends
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.faults import Faults
    from tests.simulation.world import World

WEIGHT = 4
"""Among other faults."""


class Scripts(Recoveries):
    """See the module."""

    def __init__(self, world: World, faults: Faults) -> None:
        super().__init__(world, faults)
        self._running: Script | None = None

    def kinds(self) -> dict[str, tuple[Callable[[], None], int]]:
        """Return the scripts as kinds of faults, with their weights."""
        scripts: dict[str, Callable[[Cast], Script]] = {
            "stale tail": self._stale_tail,
            "crossing": self._crossing,
            "late seal": self._late_seal,
            "late cut": self._late_cut,
            "slow fetch": self._slow_fetch,
            "slow catch-up": self._slow_catch_up,
            "cut entry": self._cut_entry,
            "wiped holder": partial(self._lost_holder, self._wipe),
            "rotten holder": partial(self._lost_holder, self._rot),
            "emptied holder": partial(self._lost_holder, self._empty),
            "rebooted holder": partial(self._lost_holder, self._reboot),
            "rebooted follower": self._rebooted_follower,
            "reboot cut short": self._of_a_later_log(partial(self._lost_holder, self._reboot_cut_short)),
            RESTARTED_OWNER: self._restarted_owner,
            LIGHTS_OUT: self._lights_out,
            UNSAFE: self._unsafe_recover,
        }
        return {name: (partial(self._begin, name, script), WEIGHT) for name, script in scripts.items()}

    def stop(self) -> None:
        """End the script that runs."""
        self._running = None
        self._clean_up()

    # ------------------------------------------------------------------------------------------ running

    def _begin(self, name: str, script: Callable[[Cast], Script]) -> None:
        if self._running is None:
            self._world.clock.note("script", name)
            self._running = self._played(script)
            self._go_on(self._running)

    def _played(self, script: Callable[[Cast], Script]) -> Script:
        """Play a script as soon as there is a cast for it, if there is one in time."""
        cast = yield from self._cast()
        if cast is not None:
            yield from script(cast)

    def _go_on(self, script: Script) -> None:
        if self._running is not script:
            return
        wait_ms = next(script, None)
        if wait_ms is None:
            self.stop()
        else:
            self._world.clock.after(int(wait_ms * 1000), lambda: self._go_on(script))

    def _clean_up(self) -> None:
        self._world.network.let_go()
        for undo in self._undo:
            undo()
        self._undo.clear()

    # ------------------------------------------------------------------------------------------ old news

    def _stale_tail(self, cast: Cast) -> Script:
        """Only one replica writes and acknowledges an append; the owner dies, and that replica owns the next epoch."""
        network, owner, (one, *rest) = self._world.network, cast.owner, cast.others
        network.hold(one.node_id, owner.node_id, pb.ReplicationAck)
        self._part([owner], rest)
        unstall = self._stall(owner)
        yield self._random.uniform(100, 300)
        owner.stop("killed with a tail at another node")
        unstall()
        self._part([one], self._world.machines)
        self._join([owner], rest)
        yield 5
        owner.start()

        def owns_the_next() -> bool:
            replica = self._replica(owner, cast)
            return replica is not None and replica.state.owner is not None and replica.state.active.epoch > cast.epoch

        yield from self._until(owns_the_next)
        # No other node may have the batch that the old acknowledgement seems to be about.
        self._part([owner], rest)
        for _ in range(20):
            network.release(one.node_id, owner.node_id, hold_on=True)
            yield 20
        self._join([owner], rest)
        yield self._random.uniform(50, 400)
        self._join([one], self._world.machines)
        yield 50

    def _crossing(self, cast: Cast) -> Script:
        """The owner ends its epoch by plan while it is cut off; that arrives after the others have decided."""
        network, owner = self._world.network, cast.owner
        for one in cast.others:
            network.hold(owner.node_id, one.node_id, pb.OpenEpoch)
            for other in cast.others:
                network.hold(one.node_id, other.node_id, pb.MetadataUpdate, pb.AppendBatch, pb.EpochStatus)
        self._part([owner], self._world.machines)
        process = owner.running
        if process is None:
            return
        self._roll_over(process.partitions[cast.key])
        replicas = [self._replica(one, cast) for one in cast.others]
        yield from self._until(lambda: any(one is not None and one.state.active.epoch > cast.epoch for one in replicas))
        for one in cast.others:
            network.release(owner.node_id, one.node_id)
        yield 100

    def _late_seal(self, cast: Cast) -> Script:
        """A cut ends when a takeover seals: the owner is asked for its promise, those that follow it still are not."""
        followers, rest = cast.others[: cast.ack_quorum - 1], cast.others[cast.ack_quorum - 1 :]
        for one, other in [*product(followers, rest), *product(rest, followers)]:
            network = self._world.network
            network.hold(one.node_id, other.node_id, pb.Seal, pb.OpenEpoch, pb.MetadataUpdate, pb.EpochStatus)
        self._part([cast.owner], self._world.machines)

        def seals() -> bool:
            replicas = [self._replica(one, cast) for one in cast.others]
            return any(one is not None and one.candidate.phase == "sealing" for one in replicas)

        yield from self._until(seals)
        for one in cast.others:
            self._world.network.hold(one.node_id, cast.owner.node_id, pb.MetadataUpdate, pb.EpochStatus)
        self._join([cast.owner], self._world.machines)
        yield self._random.uniform(300, 600)

    def _late_cut(self, cast: Cast) -> Script:
        """An owner that is cut off appends on; it comes back when two epochs have ended without that."""
        self._part([cast.owner], self._world.machines)

        def next_owner() -> Copy | None:
            copies = [self._copy(one, cast) for one in cast.others]
            return next(
                (
                    one
                    for one in copies
                    if one is not None and one.replica.state.active.epoch > cast.epoch and one.replica.can_append
                ),
                None,
            )

        yield from self._until(lambda: next_owner() is not None)
        yield self._random.uniform(20, 200)
        copy = next_owner()
        if copy is not None:
            self._roll_over(copy)
            yield self._random.uniform(20, 100)
            self._stall(cast.owner, 100)
            self._join([cast.owner], self._world.machines)
            yield 400

    # ------------------------------------------------------------------------------------------ late logs

    def _slow_fetch(self, cast: Cast) -> Script:
        """A replica that lags fetches the log for a proposal, and another ballot is promised before it has arrived."""
        network, owner, (behind, *rest) = self._world.network, cast.owner, cast.others
        self._part([owner], [behind])
        yield self._random.uniform(80, 300)
        for one in rest:
            network.hold(one.node_id, behind.node_id, pb.BackfillReply)
        network.hold(owner.node_id, behind.node_id, pb.BackfillReply, pb.OpenEpoch)
        owner.stop("killed with a replica that lags")
        self._join([owner], [behind])

        def fetches() -> bool:
            replica = self._replica(behind, cast)
            return replica is None or (replica.state.promised and replica.catch_up.deadline_ms is not None)

        yield from self._until(fetches)
        replica, first = self._replica(behind, cast), pb.Ballot()
        if replica is None or replica.state.fence is None or replica.state.fence.promised is None:
            return
        first.CopyFrom(replica.state.fence.promised)
        self._part([owner], rest)
        owner.start()
        yield from self._until(lambda: self._is_promised(behind, cast, but=first))
        for one in rest:
            network.release(one.node_id, behind.node_id)
        yield 100

    def _slow_catch_up(self, cast: Cast) -> Script:
        """A replica that lags pulls from the owner, and the answer arrives after it has promised the end."""
        network, owner, (behind, *rest) = self._world.network, cast.owner, cast.others
        self._part([owner], [behind])
        yield self._random.uniform(150, 500)
        network.hold(owner.node_id, behind.node_id, pb.BackfillReply)
        self._join([owner], [behind])

        def pulls() -> bool:
            replica = self._replica(behind, cast)
            return replica is None or replica.catch_up.deadline_ms is not None

        yield from self._until(pulls, 400)
        for one in rest:
            network.hold(one.node_id, behind.node_id, pb.OpenEpoch, pb.SealReply)  # else it fetches for that at once
        self._part([owner], self._world.machines)
        yield from self._until(lambda: self._is_promised(behind, cast))
        yield self._random.uniform(5, 100)
        network.release(owner.node_id, behind.node_id)
        yield 100

    # ------------------------------------------------------------------------------------------ cut short

    def _cut_entry(self, cast: Cast) -> Script:
        """The owner dies; a replica that has accepted the end of the epoch dies some writes later."""
        cast.owner.stop("killed")
        victim = cast.others[0]

        def has_accepted() -> bool:
            replica = self._replica(victim, cast)
            return replica is None or replica.state.fence is None or replica.state.fence.accepted is not None

        yield from self._until(has_accepted)
        if victim.process is not None:
            victim.crash_in_write(self._random.randrange(2, 10), power=False)
        yield from self._until(lambda: victim.process is None, 200)
        for machine in (cast.owner, victim):
            machine.start()
            yield 50

    # ------------------------------------------------------------------------------------------ no power

    def _lights_out(self, cast: Cast) -> Script:
        """The end of an epoch is decided, and all nodes lose power before a batch is committed after it.

        The decision must exist when the power is back; batches committed in an open epoch need not.
        """
        world, scenario = self._world, self._world.scenario
        if not world.survives_power_cuts() and scenario.mixture != LIGHTS_OUT:
            return
        truth, copy = world.checks.truths[cast.key], self._copy(cast.owner, cast)
        for one, other in product(world.machines, world.machines):
            world.network.hold(one.node_id, other.node_id, pb.MetadataUpdate)  # else the next epoch begins
        if copy is not None and self._random.random() < 0.5:
            self._roll_over(copy)
        else:
            cast.owner.stop("killed before the power goes")
        yield from self._until(lambda: cast.epoch in truth.chosen)
        yield self._random.uniform(0, 20)
        end = truth.chosen.get(cast.epoch)
        if end is None or truth.committed.get(cast.epoch + 1, 0) > end.value.end_offset:
            return
        for machine in world.machines:
            machine.power_off("all power off at the end of an epoch")
        yield 10
        world.network.let_go()
        for machine in world.machines:
            machine.start()
        yield self._random.uniform(300, 800)

    # ------------------------------------------------------------------------------------------ lost copies

    def _lost_holder(self, lose: Callable[[Machine], Script], cast: Cast) -> Script:
        """Of the quorum with the newest records, one loses its copy and the others are away."""
        loser = self._faults.loser()
        if loser is None or loser not in [cast.owner, *cast.others]:
            return
        holders = [cast.owner, *cast.others]
        holders.remove(loser)
        holders = holders[: cast.ack_quorum - 1]
        rest = [one for one in [cast.owner, *cast.others] if one is not loser and one not in holders]
        self._part([cast.owner], rest)
        yield self._random.uniform(100, 400)
        self._part(holders, self._world.machines)
        self._join([loser], rest)
        yield from lose(loser)
        yield self._random.uniform(600, 1200)

    def _rebooted_follower(self, cast: Cast) -> Script:
        """A follower loses power, and the repeated push of the owner has not arrived when the owner is away."""
        loser = self._faults.loser()
        if loser is None or loser not in cast.others:
            return
        rest = [one for one in cast.others if one is not loser]
        holders, rest = [cast.owner, *rest[: cast.ack_quorum - 2]], rest[cast.ack_quorum - 2 :]
        self._part([*holders, loser], rest)
        yield self._random.uniform(100, 400)
        self._world.network.hold(cast.owner.node_id, loser.node_id, pb.AppendBatch)
        loser.power_off("power off of a follower")
        yield 10
        loser.start()

        yield from self._until(lambda: self._replica(loser, cast) is not None)
        yield 60  # for a heartbeat
        self._world.network.release(cast.owner.node_id, loser.node_id, hold_on=True)  # it asks after the next heartbeat
        yield self._random.uniform(30, 150)
        self._part(holders, self._world.machines)
        if self._random.random() < 0.5:
            yield self._random.uniform(0, 30)
            loser.stop("killed before it has the rest")
            yield 5
            loser.start()
        self._join([loser], rest)
        yield self._random.uniform(600, 1200)

    def _restarted_owner(self, cast: Cast) -> Script:
        """A follower loses records that the owner has not written yet, and asks the owner, which starts again first."""
        loser = self._faults.loser()
        if loser is None or loser not in cast.others:
            return
        network, owner = self._world.network, cast.owner
        rest = [one for one in cast.others if one is not loser]
        holders, rest = rest[: cast.ack_quorum - 1], rest[cast.ack_quorum - 1 :]
        copy = self._copy(owner, cast)
        is_synced = copy is not None and syncs_appends(copy.replica.state.active)
        self._part([owner], rest)
        write_at_once = self._stall(owner)
        yield self._random.uniform(100, 300)
        network.hold(loser.node_id, owner.node_id, pb.Backfill)
        yield from self._empty(loser) if is_synced else self._cut_power(loser)

        def asks() -> bool:
            replica = self._replica(loser, cast)
            return replica is not None and replica.catch_up.deadline_ms is not None

        yield from self._until(asks)
        self._part(holders, self._world.machines)
        owner.stop("killed before it has written what a follower has lost")
        write_at_once()
        yield 5
        owner.start()
        yield from self._until(lambda: self._replica(owner, cast) is not None)
        network.release(loser.node_id, owner.node_id)
        yield self._random.uniform(600, 1200)

    def _cut_power(self, machine: Machine) -> Script:
        machine.power_off("power off with what the owner has not written")
        yield 10
        machine.start()

    @staticmethod
    def _of_a_later_log(script: Callable[[Cast], Script]) -> Callable[[Cast], Script]:
        """Play a script with a partition that is not the first that a node opens."""

        def play(cast: Cast) -> Script:
            if cast.key[1] > 0:
                yield from script(cast)

        return play

    def _wipe(self, machine: Machine) -> Script:
        self._faults.replace_disk(machine)
        yield 500

    def _rot(self, machine: Machine) -> Script:
        machine.stop("for rot")
        self._world.clock.note("fault", "rot", machine.node_id, rot(machine.disk, self._random, newest=True))
        yield 10
        machine.start()

    def _empty(self, machine: Machine) -> Script:
        machine.stop("for a loss")
        self._world.clock.note("fault", "lost directory", machine.node_id, lose_directory(machine.disk, self._random))
        yield 10
        machine.start()

    def _reboot(self, machine: Machine) -> Script:
        """Power is lost, and perhaps the process dies once more, soon after."""
        machine.power_off("power off with what few others hold")
        yield 10
        machine.start()
        if self._random.random() < 0.5:
            yield self._random.uniform(1, self._random.choice([40, 400]))
            machine.stop("killed soon after")
            yield 5
            machine.start()

    def _reboot_cut_short(self, machine: Machine) -> Script:
        """Power is lost, and the process dies once more between its first log and its last."""
        machine.power_off("power off with what few others hold")
        yield 10
        machine.start()
        process = machine.process
        while process is not None and not process.dead and process.is_opening and not process.partitions:
            yield 0.5
        yield self._random.uniform(0, 4 * self._world.write_ms)
        if process is not None and process.is_opening:
            machine.stop("killed while it opens its logs")
            yield 5
            machine.start()
