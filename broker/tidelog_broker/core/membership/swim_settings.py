"""Settings of the membership protocol. The defaults suit a LAN and detect a killed node in well under a second.

`suspicion_ms` is longer than the longest pause of a live node on a busy machine, about half a second, because a false
death moves partitions needlessly. `refused_suspicion_ms` can be short: a refused connection is nearly proof that the
process has ended, because the kernel accepts connections for a busy process. The timeout leaves two gossip rounds for
the record of a process that was restarted elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwimSettings:
    """Times and limits of the protocol; a slow node lengthens its period, probe timeout and suspicions.

    Args:
        protocol_period_ms: interval between probes; a member that has not answered by its end is suspected.
        probe_timeout_ms: wait for a direct answer before other members are asked to probe.
        indirect_probes: number of other members that are asked.
        suspicion_ms: time to refute a suspicion in clusters of up to 10 nodes; times log10(n) beyond.
        refused_suspicion_ms: the same for a member that refuses connections.
        gossip_interval_ms: interval of datagrams sent only for pending updates.
        gossip_fanout: number of members that such a datagram is sent to.
        retransmit_factor: each node sends an update retransmit_factor * ceil(log2(n + 1)) times, for n live members.
        dead_probe_interval_ms: interval between probes of dead members, which let a healed partition merge.
        seed_interval_ms: interval at which seeds that are not the address of a live member are contacted.
        tick_gap_ms: a timer that is late by more than this shows that the process was paused; suspicions restart.
        late_tick_ms: a timer that is late by more than this shows that this node is slow.
        slowness_max: a slow node scales those times by at most 1 + slowness_max.
        members_max: maximum number of records; members that left or died are evicted first.
        relays_max: maximum number of concurrent probes on behalf of others; further requests get a Nack.
    """

    protocol_period_ms: int = 100
    probe_timeout_ms: int = 40
    indirect_probes: int = 3
    suspicion_ms: int = 800
    refused_suspicion_ms: int = 100
    gossip_interval_ms: int = 50
    gossip_fanout: int = 3
    retransmit_factor: int = 3
    dead_probe_interval_ms: int = 1_000
    seed_interval_ms: int = 1_000
    tick_gap_ms: int = 150
    late_tick_ms: int = 25
    slowness_max: int = 3
    members_max: int = 1_024
    relays_max: int = 256

    def __post_init__(self) -> None:
        """Reject inconsistent settings."""
        for name in self.__slots__:
            least = 0 if name in {"indirect_probes", "slowness_max"} else 1
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")
        if self.probe_timeout_ms * 2 > self.protocol_period_ms:
            raise ValueError(
                f"protocol_period_ms must be at least twice probe_timeout_ms ({self.probe_timeout_ms}), "
                f"got {self.protocol_period_ms}"
            )
