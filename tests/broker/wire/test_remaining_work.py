"""Requests that are processed in slices, in their caller's read turns."""

from __future__ import annotations

from tidelog_broker.wire.read_turns import TURN_BYTES, ReadTurn, RemainingWork


class Work:
    """A request of some pieces, each of which takes a share of the turn."""

    def __init__(self, turn: ReadTurn, pieces: int, share: int) -> None:
        self.turn = turn
        self.left = pieces
        self.share = share
        self.dropped = False

    def next_slice(self) -> bool:
        self.left -= 1
        self.turn.taken_bytes += TURN_BYTES // self.share
        return self.left == 0

    def drop(self) -> None:
        self.dropped = True


def test_empty_rest_is_done() -> None:
    assert RemainingWork().is_done(ReadTurn())


def test_pieces_are_processed_until_the_turn_is_over() -> None:
    turn, rest = ReadTurn(), RemainingWork()
    work = Work(turn, pieces=5, share=2)
    rest.begin(work)
    assert not rest.is_done(turn)
    assert work.left == 3
    assert not rest.is_done(turn), "the turn is still over"
    assert work.left == 3
    turn.taken_bytes = 0
    assert not rest.is_done(turn)
    turn.taken_bytes = 0
    assert rest.is_done(turn)
    assert (work.left, work.dropped) == (0, False)


def test_work_that_ends_with_the_turn_is_done() -> None:
    turn, rest = ReadTurn(), RemainingWork()
    rest.begin(Work(turn, pieces=2, share=2))
    assert rest.is_done(turn)
    assert turn.is_over


def test_remaining_work_is_dropped_once() -> None:
    turn, rest = ReadTurn(), RemainingWork()
    work = Work(turn, pieces=3, share=1)
    rest.begin(work)
    assert not rest.is_done(turn)
    rest.drop()
    rest.drop()
    turn.taken_bytes = 0
    assert rest.is_done(turn)
    assert (work.left, work.dropped) == (2, True)
