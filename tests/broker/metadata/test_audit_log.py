from __future__ import annotations

from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.session import Session
from tidelog_broker.metadata.audit_log import (
    ASKED_CHARS_MAX,
    ASKED_ENTRIES_MAX,
    REFUSALS_PER_S,
    About,
    AuditLog,
    _without_secrets,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def test_refusals_beyond_the_rate_are_counted() -> None:
    audit, lines = AuditLog(), list[dict[str, object]]()
    audit.also = lines.append
    session = Session(Permissions(), "eve")
    for number in range(1_000):
        if number % 2:
            audit.refused("topic_delete", session, ProtocolError(pb.FORBIDDEN, "no"))
        else:
            audit.unknown("no key", "client")
    assert REFUSALS_PER_S <= len(lines) <= 4 * REFUSALS_PER_S
    told = sum(int(str(line["count"])) for line in lines if line["event"] == "more refusals")
    assert told <= 1_000 - REFUSALS_PER_S


def test_password_verifiers_are_not_audited() -> None:
    audit, lines = AuditLog(), list[dict[str, object]]()
    audit.also = lines.append
    user = pb.ScramUser(name="ann", roles=["etl"], iterations=1, salt=b"s", stored_key=b"k", server_key=b"v")
    for change in (pb.SecurityChange(create_user=user), pb.SecurityChange(set_password=user)):
        audit.begin("security_change", Session(Permissions(), "admin"), pb.Envelope(security_change=change), About())
        assert change.WhichOneof("change") is not None
    written = str(lines)
    assert written.count('"name": "ann"') == 2
    assert "etl" in written
    assert not any(name in written for name in ("salt", "storedKey", "serverKey"))


def test_long_list_is_shortened_in_an_audit_line() -> None:
    audit, lines = AuditLog(), list[dict[str, object]]()
    audit.also = lines.append
    entries = [pb.DeleteRecordsEntry(topic_id=b"t" * 16, partition=number) for number in range(4_096)]
    envelope = pb.Envelope(delete_records=pb.DeleteRecords(entries=entries))
    session = Session(Permissions(), "ann")
    audit.begin("delete_records", session, envelope)
    whole = str(lines[0]["asked"])
    assert len(whole) == ASKED_CHARS_MAX
    assert _without_secrets("delete_records", envelope).ByteSize() < envelope.ByteSize() // 4
    del envelope.delete_records.entries[ASKED_ENTRIES_MAX:]
    audit.begin("delete_records", session, envelope)
    assert lines[1]["asked"] == whole, "the line is equal to that of the complete request"


def test_long_list_of_a_change_is_shortened_in_an_audit_line() -> None:
    rule = pb.AccessRule(principal="ann", operations=[pb.OP_CONSUME] * 100_000, resource=pb.RES_TOPIC, name="t")
    told = _without_secrets("security_change", pb.Envelope(security_change=pb.SecurityChange(grant=rule)))
    assert isinstance(told, pb.SecurityChange)
    assert len(told.grant.operations) == ASKED_ENTRIES_MAX
    assert (told.grant.principal, told.grant.name) == ("ann", "t")
