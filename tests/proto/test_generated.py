"""The generated modules that are checked in are the ones that the .proto files give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tidelog_proto
from tidelog_proto import broker_pb2 as pb

PROTO = Path(tidelog_proto.__file__).parent


@pytest.mark.parametrize("source", sorted(path.stem for path in PROTO.glob("*.proto")))
def test_generated_module_is_current(source: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO.parent}"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"tidelog_proto/{source}.proto"]
    subprocess.run(command, check=True, capture_output=True, cwd=PROTO.parent)
    for name in (f"{source}_pb2.py", f"{source}_pb2.pyi"):
        assert (tmp_path / "tidelog_proto" / name).read_text() == (PROTO / name).read_text(), (
            f"{name} is stale: python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto "
            f"proto/tidelog_proto/{source}.proto"
        )


def test_kinds_never_change_their_numbers() -> None:
    """A sample over the whole range: renumbering a kind breaks all deployed peers."""
    numbers = {field.name: field.number for field in pb.Envelope.DESCRIPTOR.fields}
    expected = {"correlation_id": 1, "error": 2, "hello": 3, "publish": 7, "fetch": 9, "message_event": 15}
    expected |= {"commit": 20, "topic_create": 24, "cluster_status_reply": 31}
    assert {name: numbers[name] for name in expected} == expected
    assert numbers["append_batch"] == 44
    assert numbers["backfill_reply"] == 55
    assert (numbers["group_heartbeat"], numbers["group_delete_reply"]) == (64, 71)
    assert not {number for number in numbers.values() if 61 <= number < 64 or 72 <= number < 80}, "kept for later"
