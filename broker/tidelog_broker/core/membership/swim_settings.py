"""How fast membership works. The defaults suit a LAN: a killed node is known dead in well under a second.

A node whose machine is busy can be silent for half a second and live. Of three starts of nine nodes at once on two
busy cores, with a suspicion of 300 ms, one ended with live ones declared dead, and partitions changed hands for
nothing. So a silent member gets 800 ms. A killed process is another case: its machine refuses the connection that is
tried at once, which is nearly proof, and that suspicion is short. A process that lives does not refuse, however busy
it is: the kernel takes connections for it. 100 ms are two rounds of gossip, for one that was started again elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SwimSettings:
    """Times and bounds of the protocol; every time is stretched while this node itself is slow.

    Args:
        protocol_period_ms: one member is probed per period; who has not answered by its end is suspected.
        probe_timeout_ms: others are asked to probe too when the direct answer takes longer.
        indirect_probes: how many others.
        suspicion_ms: how long a suspected member has to contradict, in clusters of up to 10; times log10(n) beyond.
        refused_suspicion_ms: the same for one that refuses connections.
        gossip_interval_ms: how often news is sent by itself while there is any.
        gossip_fanout: to how many members.
        retransmit_factor: a change is passed on this many times log2(n + 1) by each node.
        dead_probe_interval_ms: how often one of the dead is probed, so that a healed partition merges.
        seed_interval_ms: how often a seed that is no live member's address is asked to let this node in.
        tick_gap_ms: a timer that is late by more means that the process was paused: nobody is suspected for that.
        late_tick_ms: a timer that is late by more than this means that this node is slow.
        slowness_max: times are stretched by 1 + slowness at most.
        members_max: records kept; the gone make room first.
        relays_max: probes on behalf of others under way; more are answered with a Nack at once.
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
        """Refuse settings that contradict each other.

        Raises:
            ValueError: a number is below 1, or a probe's indirect part would not fit into its period.
        """
        for name in self.__slots__:
            if getattr(self, name) < (0 if name in {"indirect_probes", "slowness_max"} else 1):
                raise ValueError(f"{name} is {getattr(self, name)}")
        if self.probe_timeout_ms * 2 > self.protocol_period_ms:
            raise ValueError("an indirect probe needs as long as a direct one; both must fit into a period")
