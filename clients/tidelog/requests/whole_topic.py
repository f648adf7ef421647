"""A topic with all of its partitions, of answers that come in pages."""

from __future__ import annotations

from tidelog.cluster.routing import Router
from tidelog.model import Topic
from tidelog.requests.paging import pages
from tidelog.requests.topic_conversions import partition_of, topic_of
from tidelog_proto import broker_pb2 as pb


async def whole_topic(router: Router, reply: pb.TopicReply) -> Topic:
    """Return the topic of an answer, which may hold its first partitions only, with all of them.

    Raises:
        UnknownTopicError: it was deleted meanwhile.
        TidelogError: the answer has this error in place of the topic, or a request for a further page failed.
    """
    (info,) = reply.topics
    if not reply.HasField("next"):
        return topic_of(info)
    partitions = [partition_of(each) for each in info.partitions]

    async def ask(cursor: pb.TopicCursor | None) -> pb.TopicReply:
        asked = pb.TopicDescribe(name=info.name, cursor=cursor or reply.next)
        envelope = pb.Envelope(topic_describe=asked)
        return (await router.call_any(lambda: envelope, repeatable=True)).envelope.topic_reply

    async for page in pages(ask):
        for more in page.topics:
            if more.topic_id != info.topic_id:
                partitions.clear()  # it was made again in between
            info = more
            partitions += map(partition_of, more.partitions)
    return topic_of(info, partitions)
