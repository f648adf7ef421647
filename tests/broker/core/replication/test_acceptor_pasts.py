"""The acceptor and candidates of another chain: after an unsafe recovery two chains may have an epoch number twice."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import ballot, decision, descriptor, end_of
from tests.broker.core.replication.test_acceptor import HELD, Trial

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import Send
from tidelog_proto import broker_pb2 as pb


@pytest.mark.parametrize("step", ["seal", "pre-vote"])
def test_candidate_with_another_chain_gets_no_promise_and_chains_are_exchanged(step: str) -> None:
    chain = EpochChain(descriptor())
    chain.extend(decision(chain, end_of(HELD)))

    def asked(past: bytes) -> list[type]:
        trial = Trial([], chain=chain)
        if step == "seal":
            trial.acceptor.on_seal("c", pb.Seal(epoch=1, ballot=ballot(3), previous_hash=past), 0)
            for _ in range(trial.writes):
                trial.wrote()
        else:
            trial.acceptor.on_pre_vote("c", pb.PreVote(epoch=1, previous_hash=past), 0)
        assert trial.promises == (step == "seal" and past != b"another")
        return [type(reply.message) for reply in trial.replies() if isinstance(reply, Send)]

    answer = pb.SealReply if step == "seal" else pb.PreVoteReply
    assert asked(chain.previous_hash) == [answer]
    assert asked(b"") == [answer], "an older node does not tell"
    assert asked(b"another") == [pb.EpochStatus]
