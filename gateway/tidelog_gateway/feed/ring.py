"""The newest pieces of a topic, each encoded once, and the subscriptions that follow them.

A *piece* is what one message carries: records of one partition as JSON, from one position to the next. A *follower* is
in one of two states:

- **In step**: it was sent every piece, so its positions are those of the ring, and so is its resume token. A new piece
  is pushed to it at once, the same bytes as to all others of its lane (`lane.py`).
- **Behind**: it has positions of its own and takes pieces one by one when it can. It gets in step when it has taken
  the last one and its positions are equal to those of the ring.

A follower that cannot take a piece falls behind. The ring is bounded in bytes, so the pieces that a follower needs may
have been evicted when it continues: it is *lost* then, and its subscription reads from the log by itself. Whether a
piece continues a follower's position is checked for each piece, so no record is left out and none is sent twice.

A piece is pushed to at most `PUSHES_MAX` followers in one go. `push_on` pushes it to the others; until then these have
the positions before it.

A follower may be ahead of the ring in some partitions, as it read by itself before: pieces before its position are
passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from tidelog_gateway.budget.connection_output import ConnectionOutput

AHEAD_RECORDS_MAX: Final = 1_000
"""How far a new follower may be ahead of the ring in a partition; it gets no records until the ring catches up."""


PUSHES_MAX: Final = 1_000
"""Followers that a piece is pushed to in one go: a write takes some 6 us."""

PIECE_BYTES: Final = 256
"""The approximate memory of a piece besides its records."""


class Piece(NamedTuple):
    """Records of one partition, encoded.

    Attributes:
        first_offset: the position of a reader that is sent this.
        next_offset: its position afterwards.
        data: the records as a JSON array.
    """

    partition: int
    first_offset: int
    next_offset: int
    records: int
    payload_bytes: int
    data: bytes

    @property
    def size_bytes(self) -> int:
        """The memory that the piece takes."""
        return len(self.data) + PIECE_BYTES


class Credit(Protocol):
    """The credit of a subscription.

    Attributes:
        credit_records: that it may still be sent.
        credit_bytes: the same in bytes of payload; None without a bound.
        message_bytes_max: the longest message that the client takes; None without a bound.
    """

    credit_records: int
    credit_bytes: int | None
    message_bytes_max: int | None


class Watch(Protocol):
    """Observes each push to one follower."""

    def may_push(self) -> bool:
        """Whether a piece may be pushed; if not, the follower falls behind."""
        ...

    def pushed(self) -> None:
        """A piece was pushed, and credit was spent for it."""
        ...


class Form(Protocol):
    """How a piece is written to some followers. Equal forms give equal bytes.

    Attributes:
        surface: what the records are counted as.
        always_token: whether each piece needs a resume token, however long.
    """

    @property
    def surface(self) -> str: ...  # noqa: D102 - see the class

    @property
    def always_token(self) -> bool: ...  # noqa: D102 - see the class

    def encode(self, piece: Piece, token: str | None) -> bytes:
        """Return a piece as it is written to the transport, with the token that resumes after it."""
        ...


class Pusher(Protocol):
    """Pushes a piece to followers; those of one pusher are sent the same bytes."""

    def push(self, piece: Piece, followers: Iterable[Follower]) -> list[Follower]:
        """Send the newest piece and spend credit for it; return the followers to which it could not be sent."""
        ...


class Follower:
    """One subscription in a ring.

    Args:
        positions: partition -> next offset; belongs to the follower while it is behind.
        credit: of the subscription.
        outlet: of its connection.
        form: how pieces are written to it.
        wake: called when there is a piece to take, and when the follower is lost.
        watch: looks at each push; None where nothing has to.

    Attributes:
        lane: pushes to it; set by the feed before it is attached.
        in_step: `positions` are those of the ring.
        lost: the ring cannot serve it any more.
        at: number of the next piece to look at, while it is behind.
    """

    __slots__ = ("at", "credit", "form", "in_step", "lane", "lost", "outlet", "positions", "wake", "watch")

    lane: Pusher

    def __init__(
        self,
        positions: dict[int, int],
        credit: Credit,
        outlet: ConnectionOutput,
        form: Form,
        wake: Callable[[], None],
        *,
        watch: Watch | None = None,
    ) -> None:
        self.positions = positions
        self.credit = credit
        self.outlet = outlet
        self.form = form
        self.wake = wake
        self.watch = watch
        self.in_step = False
        self.lost = False
        self.at = 0

    def wants(self) -> bool:
        """Whether it has credit."""
        credit_bytes = self.credit.credit_bytes
        return self.credit.credit_records > 0 and (credit_bytes is None or credit_bytes > 0)


class Ring:
    """See the module.

    Args:
        positions: where reading begins: partition -> next offset. The ring keeps it up to date.
        bytes_max: of pieces that are kept; the newest one is kept in any case.
    """

    def __init__(self, positions: dict[int, int], *, bytes_max: int) -> None:
        self.positions = positions
        self.held_bytes = 0
        self._bytes_max = bytes_max
        self._begins: dict[int, int] = {}
        """First offsets of the partitions that were added to the topic after the ring was made."""
        self._pieces: deque[Piece] = deque()
        self._first = 0
        """Number of the oldest piece that is kept."""
        self._in_step: dict[Pusher, dict[Follower, None]] = {}
        self._pending: deque[tuple[Pusher, list[Follower]]] = deque()
        """Followers in step to which the newest piece has yet to be pushed."""
        self._before: int | None = None
        """Position of the newest piece's partition before that piece."""
        self._newest: Piece
        self._behind: dict[Follower, None] = {}
        self.closed = False

    def __len__(self) -> int:
        """Return the number of followers."""
        return sum(map(len, self._in_step.values())) + len(self._behind)

    @property
    def end(self) -> int:
        """Number of the next piece."""
        return self._first + len(self._pieces)

    @property
    def is_wanted(self) -> bool:
        """Whether a follower has taken all pieces and has credit for more."""
        for followers in self._in_step.values():
            for follower in followers:
                if follower.wants():
                    return True
        if not self._behind:
            return False
        end = self.end
        return any(follower.at >= end and follower.wants() for follower in self._behind)

    def append(self, piece: Piece) -> bool:
        """Add a piece and push it to the followers that are in step; True where `push_on` has to push to some of them.

        Args:
            piece: continues the ring's position in its partition.
        """
        assert not self._pending, "one piece at a time"
        before = self._before = self.positions.get(piece.partition)
        assert before is None or before == piece.first_offset, "pieces follow each other"
        assert piece.next_offset > piece.first_offset, "positions only move forward"
        if before is None:
            self._begins[piece.partition] = piece.first_offset
        self._pieces.append(piece)
        self.held_bytes += len(piece.data) + PIECE_BYTES
        self.positions[piece.partition] = piece.next_offset
        if self.held_bytes > self._bytes_max:
            self._evict()
        self._newest = piece
        waiting = [follower for follower in self._behind if follower.at == self.end - 1] if self._behind else ()
        if len(self._in_step) == 1:
            ((lane, followers),) = self._in_step.items()
            if len(followers) <= PUSHES_MAX:
                self._push(lane, list(followers))
            else:
                self._pending.append((lane, list(followers)))
        else:
            self._pending.extend([(lane, list(followers)) for lane, followers in self._in_step.items()])
        is_more = bool(self._pending) and self.push_on()
        for follower in waiting:
            follower.wake()
        return is_more

    def push_on(self) -> bool:
        """Push the newest piece to some more followers; True while there are others to push it to."""
        left, pending = PUSHES_MAX, self._pending
        while pending and left > 0:
            lane, followers = pending.popleft()
            if len(followers) > left:
                pending.appendleft((lane, followers[left:]))
                followers = followers[:left]
            left -= len(followers)
            self._push(lane, followers)
        return bool(pending)

    def _push(self, lane: Pusher, followers: list[Follower]) -> None:
        for follower in lane.push(self._newest, followers):
            self._falls_behind(follower)
            follower.wake()

    def attach(self, follower: Follower) -> bool:
        """Take a follower, if the ring has all that it was not sent yet; it is behind at first."""
        if self.closed or not self._reaches(follower.positions):
            return False
        follower.at = self._first
        self._behind[follower] = None
        self._settle(follower)
        return True

    def next_for(self, follower: Follower) -> Piece | None:
        """Return the next piece that a follower is to be sent.

        None if the follower is in step or lost now, or waits for the ring to reach its position.
        """
        while not follower.in_step and not follower.lost:
            follower.at = max(follower.at, self._first)
            if follower.at >= self.end:
                self._settle(follower)
                return None
            piece = self._pieces[follower.at - self._first]
            if not self._fits(follower.positions, piece):
                self._loses(follower)
                return None
            if piece.next_offset > self._expected(follower.positions, piece.partition, piece.next_offset):
                return piece
            follower.at += 1
        return None

    def taken(self, follower: Follower, piece: Piece) -> None:
        """Note that a follower was sent the piece that `next_for` returned; its position has moved."""
        assert follower.positions.get(piece.partition) == piece.next_offset
        follower.at += 1

    def leave(self, follower: Follower) -> None:
        """Forget a follower. One that was in step keeps the positions of now."""
        if follower.in_step:
            is_pending = False
            for _, followers in self._pending:
                if follower in followers:
                    followers.remove(follower)
                    is_pending = True
            follower.positions = self._positions_before() if is_pending else dict(self.positions)
            self._out_of_step(follower)
        self._behind.pop(follower, None)

    def drop_pieces(self) -> int:
        """Drop all pieces and return the bytes that this frees."""
        freed_bytes, self.held_bytes = self.held_bytes, 0
        self._first = self.end
        self._pieces.clear()
        return freed_bytes

    def close(self) -> None:
        """Lose all followers: the feed does not read any more."""
        self.closed = True
        for follower in [*(each for followers in self._in_step.values() for each in followers), *self._behind]:
            self._loses(follower)

    def reaches(self, positions: Mapping[int, int]) -> bool:
        """Whether a follower with these positions could attach."""
        return not self.closed and self._reaches(positions)

    def _reaches(self, positions: Mapping[int, int]) -> bool:
        reached = dict(positions)
        for piece in self._pieces:
            if not self._fits(reached, piece):
                return False
            reached[piece.partition] = max(reached.get(piece.partition, 0), piece.next_offset)
        return all(own <= reached.get(number, -1) <= own + AHEAD_RECORDS_MAX for number, own in self.positions.items())

    def _fits(self, positions: Mapping[int, int], piece: Piece) -> bool:
        """Whether a piece lies before a position, or begins at it."""
        expected = self._expected(positions, piece.partition, -1)
        return piece.next_offset <= expected or piece.first_offset == expected

    def _expected(self, positions: Mapping[int, int], partition: int, default: int) -> int:
        return positions.get(partition, self._begins.get(partition, default))

    def _settle(self, follower: Follower) -> None:
        """Put a follower that has taken all pieces in step, or lose it if it is behind the ring all the same."""
        if follower.at < self.end:
            return
        if follower.positions == self.positions:
            self._behind.pop(follower, None)
            self._in_step.setdefault(follower.lane, {})[follower] = None
            follower.in_step = True
            follower.positions = self.positions
        elif any(own > follower.positions.get(number, -1) for number, own in self.positions.items()):
            self._loses(follower)

    def _falls_behind(self, follower: Follower) -> None:
        """Have a follower in step take the newest piece by itself when it can."""
        self._out_of_step(follower)
        self._behind[follower] = None
        follower.positions = self._positions_before()
        follower.at = self.end - 1

    def _out_of_step(self, follower: Follower) -> None:
        follower.in_step = False
        followers = self._in_step[follower.lane]
        del followers[follower]
        if not followers:
            del self._in_step[follower.lane]

    def _positions_before(self) -> dict[int, int]:
        """Return the positions before the newest piece."""
        positions = dict(self.positions)
        if self._before is None:
            del positions[self._newest.partition]
        else:
            positions[self._newest.partition] = self._before
        return positions

    def _loses(self, follower: Follower) -> None:
        self.leave(follower)
        follower.lost = True
        follower.wake()

    def _evict(self) -> None:
        while self.held_bytes > self._bytes_max and len(self._pieces) > 1:
            self.held_bytes -= self._pieces.popleft().size_bytes
            self._first += 1
