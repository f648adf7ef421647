from __future__ import annotations

import uuid

import pytest
from tests.spark.conftest import Node
from tests.spark.typed_frames import options

from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.options import parse_options
from pyspark_tidelog.typed_topic import topic_to_read, typed_topic
from tidelog.errors import UnknownTopicError
from tidelog.sync import Client

pytestmark = pytest.mark.spark


def test_a_single_topic_is_looked_up(node: Node, client: Client) -> None:
    name, plain = f"typed-{uuid.uuid4().hex}", f"plain-{uuid.uuid4().hex}"
    client.create_topic(name, schema=["n int32"])
    client.create_topic(plain)
    client.evolve_schema(name, add=["m int8"])
    found = topic_to_read(client, options(subscribe=name))
    assert found is not None
    assert (found.name, found.topic_id, found.schema.number) == (name, client.topic(name).topic_id, 2)
    given = {"bootstrap": "a:1", "assign": f'{{"{name}":[0]}}', "schemaNumber": "1"}
    by_partition = topic_to_read(client, parse_options(given))
    assert by_partition is not None
    assert [field.name for field in by_partition.schema.fields] == ["n"]
    for others in (plain, f"{name},{plain}", "missing"):
        assert topic_to_read(client, options(subscribe=others)) is None
    with pytest.raises(OptionError, match="has no schema 3; give 1 to 2"):
        typed_topic(client, name, 3)
    with pytest.raises(UnknownTopicError):
        typed_topic(client, "missing")
    found.check_id(found.topic_id)
    client.delete_topic(name)
    client.create_topic(name, schema=["n int32"])
    with pytest.raises(TidelogSourceError, match="create the DataFrame again"):
        found.check_id(client.topic(name).topic_id)
