from __future__ import annotations

from typing import Any

import pytest

from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.metadata.certificates import Certificates, rule_of
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.settings import SettingsError

ENDS = "Jan  5 09:34:43 2038 GMT"
SHOWN: dict[str, Any] = {
    "subject": ((("organizationName", "x"),), (("commonName", "ann"),)),
    "subjectAltName": (("DNS", "ann.example"), ("URI", "tidelog:client:ann%2Fb"), ("email", "ann@example")),
    "notAfter": ENDS,
}


def principal_by(*rules: str, shown: dict[str, Any] | None = SHOWN) -> str | None:
    session = Certificates(rules, Permissions(), admin="root").session_of(shown)
    return None if session is None else session.principal


@pytest.mark.parametrize(
    ("rule", "principal"),
    [
        ("uri:tidelog:client:*=*", "ann/b"),
        ("uri:spiffe://x/*=*", None),
        ("cn:ann=billing", "billing"),
        ("cn:an=billing", None),
        ("cn:*=people-*", "people-ann"),
        ("dns:*.example=*", "ann"),
        ("email:*@example=*", "ann"),
        ("dns:ann.example*=*", None),
    ],
)
def test_certificate_name_maps_to_a_principal(rule: str, principal: str | None) -> None:
    assert principal_by(rule) == principal


def test_first_matching_rule_is_used_and_the_session_ends_with_the_certificate() -> None:
    assert principal_by("dns:other=x", "cn:*=first", "uri:*=second") == "first"
    session = Certificates(["cn:*=*"], Permissions(), admin="root").session_of(SHOWN)
    assert session is not None
    assert session.expires_us == 2_146_296_883_000_000 - 2_146_296_883_000_000 % 1_000_000
    assert session.identity == ""


def test_unmatched_certificate_has_no_session() -> None:
    assert principal_by("cn:*=*", shown=None) is None
    assert principal_by("cn:*=*", shown={}) is None
    assert principal_by(shown=SHOWN) is None, "without rules"
    for name in ("*", "role:admins", "x" * 1000, "a\nb", ""):
        assert principal_by("cn:*=*", shown={"subject": ((("commonName", name),),), "notAfter": ENDS}) is None
    escaped = {"subjectAltName": (("URI", "tidelog:client:role%3Aadmins"),), "notAfter": ENDS}
    assert principal_by("uri:tidelog:client:*=*", shown=escaped) is None


@pytest.mark.parametrize("name", ["%ff", "a%ff", "%c3", "ann%20", "%ef%bc%a1nn", "%d0%b0nn", "%ef%bf%bd"])
def test_invalid_uri_name_maps_to_no_principal(name: str) -> None:
    shown = {"subjectAltName": (("URI", f"tidelog:client:{name}"),), "notAfter": ENDS}
    assert principal_by("uri:tidelog:client:*=*", shown=shown) is None


def test_rule_with_an_ambiguous_principal_is_refused() -> None:
    with pytest.raises(SettingsError, match="mixes letters"):
        rule_of("cn:x=\u0430nn")


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        ("cn:*=*", {"subject": ((("commonName", "root"),),)}),
        ("cn:*=ro*", {"subject": ((("commonName", "ot"),),)}),
        ("uri:tidelog:client:*=*", {"subjectAltName": (("URI", "tidelog:client:root"),)}),
        ("uri:tidelog:client:*=*", {"subjectAltName": (("URI", "tidelog:client:%72oot"),)}),
    ],
)
def test_certificate_name_of_the_administrator_is_refused(rule: str, shown: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="maps to the administrator 'root'") as refused:
        principal_by(rule, "cn:*=another", shown=shown | {"notAfter": ENDS})
    assert refused.value.code == pb.UNAUTHENTICATED


def test_rule_for_the_administrator_is_refused() -> None:
    with pytest.raises(SettingsError, match="'cn:ops=root': a certificate cannot name the administrator"):
        Certificates(["cn:*=*", "cn:ops=root"], Permissions(), admin="root")
    assert principal_by("cn:ann=admin") == "admin", (
        "admin is an ordinary name if the settings name another administrator"
    )


@pytest.mark.parametrize("text", ["", "cn", "cn:x", "cn:=x", "cn:x=", "name:x=y", "cn:*x*=y", "cn:x=*"])
def test_invalid_rule_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="cert_principals"):
        rule_of(text)
