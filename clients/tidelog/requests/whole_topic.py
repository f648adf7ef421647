"""A topic with all of its partitions, merged from a paged answer."""

from __future__ import annotations

from tidelog.cluster.routing import Router
from tidelog.model import Topic
from tidelog.requests.paging import pages
from tidelog.requests.topic_conversions import partition_of, topic_of
from tidelog_proto import broker_pb2 as pb


async def whole_topic(router: Router, reply: pb.TopicReply) -> Topic:
    """Return the topic of an answer with all partitions; the answer may have only the first of them.

    Raises:
        UnknownTopicError: the topic was deleted meanwhile.
        TidelogError: the answer is an error, or a request for a further page failed.
    """
    (info,) = reply.topics
    if not reply.HasField("next"):
        return topic_of(info)
    partitions = [partition_of(each) for each in info.partitions]

    async def ask(cursor: pb.TopicCursor | None) -> pb.TopicReply:
        request = pb.TopicDescribe(name=info.name, cursor=cursor or reply.next)
        envelope = pb.Envelope(topic_describe=request)
        return (await router.call_any(lambda: envelope, repeatable=True)).envelope.topic_reply

    async for page in pages(ask):
        for more in page.topics:
            if more.topic_id != info.topic_id:
                partitions.clear()  # the topic was created again in between
            info = more
            partitions += map(partition_of, more.partitions)
    return topic_of(info, partitions)
