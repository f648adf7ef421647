"""The admission rule of founders, in every order of requests, disk losses and restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Final, NamedTuple

import pytest

from tidelog_broker.core.incarnation import make_incarnation
from tidelog_broker.core.membership.admission import Binders, binders_needed, directory_to_bind
from tidelog_broker.core.placement.placement import majority
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES
from tidelog_proto import broker_pb2 as pb

SIZES: Final = range(1, 8)
FOUNDER: Final = "f"
DIRECTORIES_MAX: Final = 3
"""A founder loses its disk at most twice; a third loss adds nothing for founders that bound it twice."""


def directory(number: int) -> bytes:
    return bytes([number]) * DIRECTORY_ID_BYTES


def names(founders: int) -> list[str]:
    return [FOUNDER, *(f"g{number}" for number in range(founders - 1))]


def question(number: int, *, is_new: bool = True, counter: int = 1) -> pb.NodeAnnounce:
    said = pb.NodeRecord(node_id=FOUNDER, incarnation=make_incarnation(counter, number), directory_id=directory(number))
    return pb.NodeAnnounce(node=said, ask=True, bind=True, is_new=is_new)


class Other(NamedTuple):
    """Another founder: the bound directory (0: none), and whether it has answered the founder's current start."""

    held: int = 0
    told_current: bool = False
    has_lost: bool = False


class World(NamedTuple):
    """One founder's directories, numbered from 1, and the bindings of the others.

    The identity of the others does not matter to the rule, so they are sorted to merge symmetric worlds.
    """

    current: int
    others: tuple[Other, ...]
    admitted: frozenset[int]

    @property
    def lost(self) -> int:
        """Number of founders that have lost a disk at least once."""
        return (self.current > 1) + sum(other.has_lost for other in self.others)


def following(world: World, ask: Callable[[int, int], int]) -> Iterator[World]:
    """Yield every world after one more event: an answered request, or a lost disk."""
    for index, other in enumerate(world.others):
        rest = world.others[:index] + world.others[index + 1 :]
        answer = ask(world.current, other.held)
        others = tuple(sorted((*rest, Other(answer, other.told_current or answer == world.current, other.has_lost))))
        admitted = world.admitted | {world.current} if is_admitted(world.current, others) else world.admitted
        yield World(world.current, others, admitted)
        if other.held:
            yield world._replace(others=tuple(sorted((*rest, Other(0, other.told_current, has_lost=True)))))
    if world.current < DIRECTORIES_MAX:
        others = tuple(sorted(other._replace(told_current=False) for other in world.others))
        yield world._replace(current=world.current + 1, others=others)


def is_admitted(current: int, others: tuple[Other, ...]) -> bool:
    """Return whether the answers to this start are sufficient, although their senders may have lost disks since."""
    founders = names(len(others) + 1)
    binders = Binders(FOUNDER, directory(current), founders)
    for name, other in zip(founders[1:], others, strict=True):
        if other.told_current:
            assert binders.answered(name, directory(current)) == ""
    return not binders.missing


def shipped(current: int, held: int) -> int:
    """Return the directory that another founder has bound after a request of the current one."""
    return directory_to_bind(question(current), bound=directory(held) if held else b"", known=None)[0]


def reached(founders: int, losses_max: int, ask: Callable[[int, int], int] = shipped) -> set[World]:
    """Return every reachable world with at most `losses_max` lost disks."""
    first = World(1, (Other(),) * (founders - 1), frozenset())
    seen, left = {first}, [first]
    while left:
        for world in following(left.pop(), ask):
            if world not in seen and world.lost <= losses_max:
                seen.add(world)
                left.append(world)
    return seen


@pytest.mark.parametrize("founders", SIZES)
def test_two_directories_of_a_founder_are_never_both_admitted(founders: int) -> None:
    """For every order of requests and losses, while a quorum of the founders keeps its disks."""
    worlds = reached(founders, majority(founders) - 1)
    assert all(len(world.admitted) <= 1 for world in worlds)
    if founders > 1:
        assert any(world.admitted == {1} for world in worlds)
    if founders > 2:
        assert any(world.admitted == {2} for world in worlds), "one that was lost before it counted takes nothing along"


@pytest.mark.parametrize("founders", [size for size in SIZES if size > 2])
def test_search_finds_a_violation_with_a_forgetful_rule(founders: int) -> None:
    """A founder that rebinds on every request admits a second directory, so the search can detect violations."""
    worlds = reached(founders, majority(founders) - 1, ask=lambda current, _: current)
    assert any(len(world.admitted) > 1 for world in worlds)


@pytest.mark.parametrize("founders", [3, 5, 7])
def test_one_binder_fewer_is_not_sufficient(founders: int) -> None:
    """With s - 1 binders, two sets of binders may intersect only in founders that lost their disks."""
    others, fewer = range(founders - 1), binders_needed(founders) - 1
    lost = majority(founders) - 2
    assert any(
        len(set(one) & set(other)) <= lost
        for one in combinations(others, fewer)
        for other in combinations(others, fewer)
    )


def test_number_of_binders_needed() -> None:
    assert [binders_needed(founders) for founders in SIZES] == [0, 1, 2, 3, 3, 4, 5]


@pytest.mark.parametrize("founders", SIZES[1:])
def test_binders_intersect_every_majority_that_counted_the_founder(founders: int) -> None:
    others = range(founders - 1)
    for binders in combinations(others, binders_needed(founders)):
        for rest in combinations(others, majority(founders) - 1):
            assert set(binders) & set(rest)


def test_only_other_founders_count_once_each() -> None:
    binders = Binders(FOUNDER, directory(1), names(5))
    assert (binders.missing, binders.waited_for) == (3, ["g0", "g1", "g2", "g3"])
    for peer in ("joiner", FOUNDER, "g1", "g1", "g3"):
        assert binders.answered(peer, directory(1)) == ""
    assert binders.answered("g2", b"") == "", "it runs a build that does not bind"
    assert (binders.missing, binders.waited_for) == (1, ["g0", "g2"])
    assert binders.answered("g2", directory(1)) == ""
    assert binders.answered("g0", directory(1)) == ""
    assert (binders.missing, binders.waited_for) == (0, [])


def test_founder_bound_to_another_directory_gets_a_remedy() -> None:
    binders = Binders(FOUNDER, directory(2), names(3))
    fault = binders.answered("g0", directory(1))
    assert "founder 'g0' has recorded another data directory of 'f'" in fault
    assert "--replace" in fault
    assert binders.answered("joiner", directory(1)) == "", "nodes other than founders do not count"


def test_node_id_is_bound_once_and_not_against_its_registration() -> None:
    assert directory_to_bind(question(1), bound=b"", known=None) == directory(1)
    assert directory_to_bind(question(1), bound=directory(1), known=None) == directory(1)
    assert directory_to_bind(question(2), bound=directory(1), known=None) == directory(1)
    assert directory_to_bind(question(1), bound=b"", known=pb.NodeRecord(node_id=FOUNDER)) == directory(1)
    registered = pb.NodeRecord(node_id=FOUNDER, incarnation=make_incarnation(3, 1), directory_id=directory(1))
    assert directory_to_bind(question(2), bound=b"", known=registered) == b""
    assert directory_to_bind(question(1, counter=4), bound=b"", known=registered) == directory(1)
    unnamed = pb.NodeRecord(node_id=FOUNDER, incarnation=make_incarnation(3, 1))
    assert directory_to_bind(question(2), bound=b"", known=unnamed) == b"", "a record from before directories had ids"
    assert directory_to_bind(question(1, is_new=False, counter=4), bound=b"", known=unnamed) == directory(1)
