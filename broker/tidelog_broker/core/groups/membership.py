"""One consumer group: its members, what each is to read, and what each may still be reading. No I/O and no clock.

A partition is *held* by a member from the moment in which it is granted until the member has reported that it has given
it up, or is a member no longer. What a member is to have stands in the *target*, which is made anew when members,
their wishes or topics change; with every new target the *generation* grows. Only what nobody holds is granted, so two
members never hold one partition, and within a generation one member at most is granted it.

The whole group is one record of `__offsets` (`GroupRecord`). What members are told is made of the newest record that is
durable (`Standing`), never of what has merely been decided here: a coordinator that follows knows all that anybody was
told. So each change goes the same way: decide, `next_record`, write it, `written`, tell. Where the write fails,
everything begins again from the record that stands.

A member is given only what its caller may read. Who that is stands in no record: the coordinator knows it of each
member that has asked since it coordinates. One that it has not heard of yet keeps the topics that it has, and is given
no others.

A member with an instance id has a *successor* when another member joins under that id. The successor takes over the
target. Unless the earlier member has said that it reads nothing any more, or the successor does not want to wait, the
earlier one stays a member, *replaced*, until it has given up all that it holds or its session is over. So what it holds
changes hands as between any two members.

A report says which record the member has seen when it made it. Only a member that has seen the target by which it is
to give something up can have given it up: what an older report does not name may be on its way to the member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.groups.assignors import Question, assign
from tidelog_broker.core.groups.load_watch import LoadWatch
from tidelog_broker.core.groups.readers import ANYBODY, GroupReader
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

MEMBERS_MAX: Final = 1_000
"""Of one group."""
PARTITIONS_MAX: Final = 20_000
"""Of all topics that a group reads."""
WISHES_BYTES_MAX: Final = 256 * 1024
"""Of all members of a group, so that its record stays below a megabyte."""
REPLACED_MAX: Final = MEMBERS_MAX
"""Members of one group whose successors wait for them."""


@dataclass(slots=True)
class ConsumerMember:
    """One member.

    Attributes:
        wish: what it asked for when it joined.
        held: partition -> the generation in which it was granted.
        target: what it is to have.
        replaced: a successor has its instance; it is a member until it holds nothing, and is given nothing more.
        stopped: it reads nothing any more, and is granted nothing; its target waits for its successor.
    """

    wish: pb.GroupWish
    held: dict[PartitionKey, int] = field(default_factory=dict[PartitionKey, int])
    target: set[PartitionKey] = field(default_factory=set[PartitionKey])
    replaced: bool = False
    stopped: bool = False
    first_revision: int = 0
    """Of the record that takes it in: what an earlier one says of its id was said of an earlier life."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a member is told: the generation, what it may read, and the record that first said so."""

    generation: int
    assigned: frozenset[PartitionKey]
    revision: int


Subscribed = Callable[[pb.GroupWish, GroupReader], Mapping[bytes, int]]
"""Tells which topics a wish stands for now where that caller has it, by id, and how many partitions each has."""
ReaderOf = Callable[[str], GroupReader | None]
"""Tells for whom the member with an id reads; None: it has not been heard of yet."""


class ConsumerGroup:
    """See the module.

    Args:
        name: what it is called.
        subscribed, reader_of: see there.
    """

    def __init__(self, name: str, subscribed: Subscribed, reader_of: ReaderOf) -> None:
        self.name = name
        self.creator = ""
        """Who has made it; empty: nobody is known. Whoever makes it sets this before the first record."""
        self._subscribed = subscribed
        self._reader_of = reader_of
        self._members: dict[str, ConsumerMember] = {}
        self._generation = 0
        self._revision = 0
        """Of the newest record that was made, whether or not it has come about."""
        self._target_revision = 0
        """Of the record that has the target as it is."""
        self._assignor = pb.ASSIGNOR_UNSPECIFIED
        self._given: frozenset[PartitionKey] = frozenset()
        """All partitions that the target is about."""
        self._made_of: dict[str, frozenset[bytes]] = {}
        """Member -> the topics that it could be given when the target was made, as far as that is known here."""
        self._needs_target = False
        self._target_is_new = False
        self._changed = False
        self.in_doubt = False
        """Whether a record that was decided here may still come about, after which the one that stands would not hold.
        Members are answered when a later one stands, so that no answer extends a session by a record that is gone."""
        self._standing = pb.GroupRecord(group=name)
        self._told: dict[str, Told] = {}
        self._load_watch = LoadWatch()

    # ------------------------------------------------------------------------------------------ what stands

    @property
    def member_ids(self) -> Collection[str]:
        """Those that are members as far as anything is decided."""
        return self._members.keys()

    @property
    def standing(self) -> pb.GroupRecord:
        """The newest durable record."""
        return self._standing

    @property
    def is_empty(self) -> bool:
        """Whether there are no members, neither decided nor durable."""
        return not self._members and not self._standing.members

    def member(self, member_id: str) -> ConsumerMember | None:
        """Return a member."""
        return self._members.get(member_id)

    def told(self, member_id: str) -> Told | None:
        """Return what a member is to be told; None while its joining is not durable, or when it is gone."""
        member = self._members.get(member_id)
        is_durable = member is not None and member.first_revision <= self._standing.revision
        return self._told.get(member_id) if is_durable else None

    def restart(self, record: pb.GroupRecord | None, *, in_doubt: bool = False) -> None:
        """Begin from a durable record: what was decided after it is forgotten.

        A record that was made here and has not come about by then may come about still: what is made from now on has a
        higher revision.

        Args:
            record: the newest that is durable; None for a new group.
            in_doubt: whether it is not known if a later one comes about; the next record then says once more what
                stands.
        """
        record = record if record is not None else pb.GroupRecord(group=self.name, creator=self.creator)
        self.creator = record.creator
        self._members = {
            member.member_id: ConsumerMember(
                member.wish, _held_of(member), keys_of(member.target), replaced=member.replaced, stopped=member.stopped
            )
            for member in record.members
        }
        self._generation = record.generation
        self._revision = max(self._revision, record.revision)
        self._target_revision = record.target_revision
        self._assignor = record.assignor
        self._given = frozenset().union(*(member.target for member in self._members.values()))
        self._made_of = {}
        self._needs_target = self._target_is_new = self._changed = False
        self._told = {}
        self._stand(record)
        self.look_at_topics()
        self._changed = self.in_doubt = in_doubt and self._revision > record.revision

    # -------------------------------------------------------------------------------------------- decisions

    def join(self, member_id: str, wish: pb.GroupWish, *, ended: str = "") -> list[str]:
        """Take a member in, which has nothing yet, and return the members that are removed because of it.

        A member with an instance id takes over the target of earlier members of that instance. Partitions that they
        hold are granted to it at once if they have stopped, or if it does not want to wait; else when they have given
        them up, or their sessions are over. One that is a member already has asked twice, or its first question comes
        late: that changes nothing. For another wish it joins under another id.

        Args:
            member_id: its id.
            wish: what it asks for.
            ended: an earlier id of the same process, which reads nothing under it any more.

        Raises:
            ProtocolError: INVALID_REQUEST: there are as many members as may be, or more partitions; MEMBER_FENCED: a
                member that was born later has the instance, or too many members are waited for.
        """
        if member_id in self._members:
            return []
        earlier = {
            other: member
            for other, member in self._members.items()
            if wish.instance_id and member.wish.instance_id == wish.instance_id
        }
        if any(member.wish.born_us > wish.born_us for member in earlier.values()):
            raise ProtocolError(
                pb.MEMBER_FENCED,
                f"a later process has the instance id {wish.instance_id!r} in the group {self.name!r}: "
                "give each its own",
            )
        stay = {other: member.wish for other, member in self._current().items() if other not in earlier}
        if len(stay) >= MEMBERS_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST, f"the group {self.name!r} has {MEMBERS_MAX} members, and no group may have more"
            )
        self._check_size({**stay, member_id: wish})
        reads_on = set[str]() if wish.takes_over_at_once else self.still_reading(earlier, ended)
        if len(self._members) - len(self._current()) + len(reads_on) > REPLACED_MAX:
            raise ProtocolError(
                pb.MEMBER_FENCED,
                f"the group {self.name!r} waits for {REPLACED_MAX} replaced members to stop reading; join again later",
            )
        joined = ConsumerMember(wish, first_revision=self._revision + 1)
        for other, member in earlier.items():
            joined.target |= member.target
            if other in reads_on:
                member.replaced, member.target, member.wish = True, set(), _wish_of_replaced(member.wish)
            else:
                del self._members[other]
        self._members[member_id] = joined
        self._assignor = wish.assignor or self._assignor
        self._needs_target = True
        return sorted(earlier.keys() - reads_on)

    def still_reading(self, members: Mapping[str, ConsumerMember], ended: str) -> set[str]:
        """Return those of some members that may still hand out records; `ended`: see `join`."""
        return {each for each, member in members.items() if member.held and not member.stopped and each != ended}

    def stop(self, member_id: str) -> bool:
        """Take in that a member reads nothing any more, and keep its target for its successor.

        Returns whether there is such a member.
        """
        member = self._members.get(member_id)
        if member is None:
            return False
        if member.replaced:
            return self.remove(member_id)
        member.held, member.stopped, self._changed = {}, True, True
        return True

    def remove(self, member_id: str) -> bool:
        """Take a member out; it holds nothing any more. Return whether there was one."""
        member = self._members.pop(member_id, None)
        if member is None:
            return False
        if member.replaced:
            self._changed = True
        else:
            self._needs_target = True
        return True

    def report(self, member_id: str, *, seen_revision: int, held: Collection[PartitionKey]) -> None:
        """Take in what a member has; what it is to give up and has given up is free."""
        member = self._members.get(member_id)
        if member is None:
            return
        if seen_revision < self._target_revision or self._needs_target:
            return
        for key in [key for key in member.held if key not in member.target and key not in held]:
            del member.held[key]
            self._changed = True
        if member.replaced and not member.held:
            self.remove(member_id)

    @property
    def wants_loads(self) -> bool:
        """Whether members are to say how much they read."""
        return self._assignor == pb.BY_LOAD

    def note_loads(self, member_id: str, loads: Mapping[PartitionKey, float]) -> None:
        """Take in how many bytes per second a member reads of what it holds; what it says of others is ignored."""
        member = self._members.get(member_id)
        if member is not None:
            self._load_watch.note(loads, member.held)

    def look_at_loads(self, now: float) -> bool:
        """Make a new target if members share by load and another one is worth what it moves; return whether it is.

        When it is, says `LoadWatch`; while partitions are on their way from one member to another it is not.

        Args:
            now: seconds of a clock that does not go back, the same at every call.
        """
        if not self.wants_loads or self._needs_target or len(self._members) < 2:
            return False
        if not self._load_watch.is_due(now, self._generation):
            return False
        if any(member.held.keys() != member.target for member in self._members.values()):
            return False
        if not self._load_watch.is_uneven([member.target for member in self._members.values()]):
            return False
        self._needs_target = self._load_watch.is_worth_it(self._question(), now)
        return self._needs_target

    def look_at_topics(self) -> None:
        """Make a new target if members can be given other topics or partitions than the target is made of."""
        asked = self._asked()
        if self._members and _partitions_in(asked) != self._given:
            self._needs_target = True
        named = _topic_sets(asked)
        for member_id, member in self._current().items():
            topics = named[member_id]
            if topics != self._made_of.get(member_id, topics) or any(key[0] not in topics for key in member.target):
                self._needs_target = True
            elif self._reader_of(member_id) is not None:
                self._made_of[member_id] = topics

    def delete(self) -> pb.GroupRecord:
        """Return the record with which the group is gone, and its positions.

        Raises:
            ProtocolError: GROUP_NOT_EMPTY: it has members.
        """
        if not self.is_empty:
            count = len(self._members) or len(self._standing.members)
            raise ProtocolError(pb.GROUP_NOT_EMPTY, f"the group {self.name!r} has {count} members: stop them first")
        self._revision += 1
        return pb.GroupRecord(group=self.name, revision=self._revision, generation=self._generation, deleted=True)

    # ---------------------------------------------------------------------------------------------- records

    def decide(self) -> None:
        """Share the partitions out, if that is to be done: the longer part of the next record's work."""
        if self._needs_target:
            self._make_target()

    def next_record(self) -> pb.GroupRecord | None:
        """Return the record that says all that was decided; None if nothing was since the last."""
        self.decide()
        self._grant()
        if not self._changed:
            return None
        self._changed = False
        self._revision += 1
        if self._target_is_new:
            self._target_is_new = False
            self._target_revision = self._revision
        record = pb.GroupRecord(
            group=self.name,
            revision=self._revision,
            generation=self._generation,
            target_revision=self._target_revision,
            assignor=self._assignor,
            creator=self.creator,
        )
        for member_id, member in self._members.items():
            record.members.append(
                pb.GroupMember(
                    member_id=member_id,
                    wish=member.wish,
                    held=_grants(member.held),
                    target=partitions_of(member.target),
                    replaced=member.replaced,
                    stopped=member.stopped,
                )
            )
        return record

    def written(self, record: pb.GroupRecord) -> list[str]:
        """Take note that a record is durable; return the members that are to be told something new by it."""
        self.in_doubt = False
        return self._stand(record)

    def check_commit(self, member_id: str, generation: int, key: PartitionKey) -> None:
        """See that a member may commit a position of a partition.

        Args:
            member_id: who commits; empty for somebody who is no member.
            generation: the one that the member was told last.
            key: which partition.

        Raises:
            ProtocolError: MEMBER_FENCED: it is no member, or others read what it names; GROUP_NOT_EMPTY: members
                commit for this group and nobody else does.
        """
        if not member_id:
            if not self.is_empty:
                raise ProtocolError(
                    pb.GROUP_NOT_EMPTY,
                    f"the group {self.name!r} has members, and only they commit: stop them, or use another group",
                )
            return
        member = self._members.get(member_id)
        if member is None:
            raise fenced(self.name)
        since = member.held.get(key)
        if since is None or since > generation:
            raise ProtocolError(
                pb.MEMBER_FENCED,
                f"the partition {key[1]} of {key[0].hex()} is not this member's in the group {self.name!r}, "
                f"generation {generation}: another one has it, or is to have it",
            )

    # -------------------------------------------------------------------------------------------- internals

    def _current(self) -> dict[str, ConsumerMember]:
        """Return the members that have no successor, by id."""
        return {member_id: member for member_id, member in self._members.items() if not member.replaced}

    def _asked(self) -> dict[str, Mapping[bytes, int]]:
        """Return for what each member asks by now, of what its caller may read."""
        return self._answers({member_id: member.wish for member_id, member in self._current().items()})

    def _answers(self, wishes: Mapping[str, pb.GroupWish]) -> dict[str, Mapping[bytes, int]]:
        """Return which topics the wishes of members stand for; those that mean the same share one answer."""
        answers: dict[tuple[object, ...], Mapping[bytes, int]] = {}
        found: dict[str, Mapping[bytes, int]] = {}
        for member_id, wish in wishes.items():
            reader = self._reader_of(member_id)
            who = ANYBODY if reader is None else reader
            said = (who.key, wish.pattern, *wish.topics)
            if said not in answers:
                answers[said] = self._subscribed(wish, who)
            found[member_id] = answers[said] if reader is not None else self._kept(member_id, answers[said])
        return found

    def _kept(self, member_id: str, answer: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """Return, of an answer for anybody, the topics that a member has already."""
        member = self._members.get(member_id)
        has = set[bytes]() if member is None else {topic_id for topic_id, _ in member.target}
        return {topic_id: answer[topic_id] for topic_id in has if topic_id in answer}

    def _check_size(self, wishes: Mapping[str, pb.GroupWish]) -> None:
        if sum(wish.ByteSize() for wish in wishes.values()) > WISHES_BYTES_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the members of the group {self.name!r} name more than fits {WISHES_BYTES_MAX} bytes: use a pattern",
            )
        topics = _topics_in(self._answers(wishes))
        if sum(topics.values()) > PARTITIONS_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"the topics of the group {self.name!r} have {sum(topics.values())} partitions together; "
                f"a group reads at most {PARTITIONS_MAX}",
            )

    def _make_target(self) -> None:
        """Say anew who is to have what."""
        self._needs_target = False
        self._generation += 1
        self._changed = self._target_is_new = True
        asked = self._asked()
        self._given = _partitions_in(asked)
        self._made_of = _topic_sets(asked)
        self._load_watch.keep(self._given)
        for each, keys in assign(self._assignor, self._question()).items():
            self._members[each].target = keys

    def _question(self) -> Question:
        """Return what a target is made of. A member with an instance comes by its name: a restart changes nothing."""
        ordered = sorted(self._current(), key=lambda each: (self._members[each].wish.instance_id or each, each))
        topics = _topic_sets(self._asked())
        asked = {each: topics[each] for each in ordered}
        has = {key: each for each, member in self._members.items() for key in member.target}
        return Question(asked, sorted(self._given), has, self._load_watch.rates)

    def _grant(self) -> None:
        """Give members what they are to have and nobody holds."""
        held = {key for member in self._members.values() for key in member.held}
        for member in self._members.values():
            for key in sorted(member.target - held) if not member.stopped else ():
                member.held[key] = self._generation
                self._changed = True

    def _stand(self, record: pb.GroupRecord) -> list[str]:
        """Let a record be what members are told."""
        self._standing = record
        before, self._told = self._told, {}
        news: list[str] = []
        for member in record.members:
            assigned = frozenset(_held_of(member).keys() & keys_of(member.target))
            old = before.get(member.member_id)
            told = Told(record.generation, assigned, record.revision)
            if old is not None and (old.generation, old.assigned) == (told.generation, told.assigned):
                told = old
            else:
                news.append(member.member_id)
            self._told[member.member_id] = told
        return news


def _topics_in(asked: Mapping[str, Mapping[bytes, int]]) -> dict[bytes, int]:
    """Return all topics that members ask for, and how many partitions each has."""
    topics: dict[bytes, int] = {}
    for answer in {id(answer): answer for answer in asked.values()}.values():
        topics |= answer
    return topics


def _topic_sets(asked: Mapping[str, Mapping[bytes, int]]) -> dict[str, frozenset[bytes]]:
    """Return the topics that each member asks for; one set for all that share an answer."""
    topics = {id(answer): frozenset(answer) for answer in asked.values()}
    return {member_id: topics[id(answer)] for member_id, answer in asked.items()}


def _partitions_in(asked: Mapping[str, Mapping[bytes, int]]) -> frozenset[PartitionKey]:
    return frozenset((topic_id, number) for topic_id, count in _topics_in(asked).items() for number in range(count))


def fenced(group: str) -> ProtocolError:
    """Return the error for who is no member any more, or never was."""
    return ProtocolError(
        pb.MEMBER_FENCED,
        f"this is no member of the group {group!r}: it was silent for longer than its session timeout, or another "
        "process has its instance id; what it read since its last commit is read again by others. Join anew",
    )


def _wish_of_replaced(wish: pb.GroupWish) -> pb.GroupWish:
    """Return what has to be kept of a member's wish once it is given nothing more."""
    kept = pb.GroupWish()
    kept.CopyFrom(wish)
    kept.ClearField("topics")
    kept.ClearField("pattern")
    return kept


def partitions_of(keys: Iterable[PartitionKey]) -> list[pb.TopicPartitions]:
    """Return partitions as they travel: by topic, in order."""
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, partition in keys:
        by_topic.setdefault(topic_id, []).append(partition)
    return [
        pb.TopicPartitions(topic_id=topic_id, partitions=sorted(by_topic[topic_id])) for topic_id in sorted(by_topic)
    ]


def keys_of(topics: Iterable[pb.TopicPartitions]) -> set[PartitionKey]:
    """Return the partitions of a message."""
    return {(topic.topic_id, partition) for topic in topics for partition in topic.partitions}


def _grants(held: Mapping[PartitionKey, int]) -> list[pb.TopicPartitions]:
    topics = partitions_of(held)
    for topic in topics:
        topic.generations.extend(held[topic.topic_id, partition] for partition in topic.partitions)
    return topics


def _held_of(member: pb.GroupMember) -> dict[PartitionKey, int]:
    return {
        (topic.topic_id, partition): generation
        for topic in member.held
        for partition, generation in zip(topic.partitions, topic.generations, strict=True)
    }
