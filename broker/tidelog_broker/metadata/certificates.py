"""Who a client is, by the certificate that it shows: rules make a principal of a name in it.

A rule is `KIND:PATTERN=PRINCIPAL`. KIND says where the name stands: `uri`, `dns` or `email` among the alternative
names, or `cn`, the common name of the subject. PATTERN is that name, with at most one `*` for any part of it, and the
same part takes the place of a `*` in PRINCIPAL. The first rule that a name matches counts. The administrator of the
settings is nobody whom a certificate may name: who that is would be decided by whoever the CA gives names to.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from tidelog_broker.core.security.permissions import Permissions, check_principal
from tidelog_broker.core.security.session import Session
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.principal_names import principal_name_fault
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.settings import SettingsError

_ALTERNATIVES: Final = {"uri": "URI", "dns": "DNS", "email": "email"}


class Rule(NamedTuple):
    """One rule: where the name stands, what is in front of and behind its free part, and whom that makes."""

    kind: str
    begin: str
    end: str
    is_exact: bool
    principal: str

    def principal_of(self, name: str) -> str | None:
        """Return whom a name makes; None where the rule is about others."""
        if self.is_exact:
            return self.principal if name == self.begin else None
        fits = len(name) > len(self.begin) + len(self.end) and name.startswith(self.begin) and name.endswith(self.end)
        if not fits:
            return None
        part = name[len(self.begin) : len(name) - len(self.end)]
        if self.kind == "uri":
            try:
                part = unquote_to_bytes(part).decode()
            except UnicodeDecodeError:  # a replacement character would make one principal of many names
                return None
        return self.principal.replace("*", part)


def rule_of(text: str) -> Rule:
    """Return a rule of the settings.

    Raises:
        SettingsError: it is none.
    """
    kind, colon, rest = text.partition(":")
    pattern, equals, principal = rest.rpartition("=")
    wrong = ""
    if not colon or not equals or not pattern or not principal:
        wrong = "it is KIND:PATTERN=PRINCIPAL, like uri:tidelog:client:*=*"
    elif kind not in {*_ALTERNATIVES, "cn"}:
        wrong = f"{kind!r} is none of cn, uri, dns, email"
    elif pattern.count("*") > 1 or principal.count("*") > pattern.count("*"):
        wrong = "a pattern has at most one *, and a principal only what the pattern has"
    elif "*" not in principal and (fault := principal_name_fault(principal)) is not None:
        wrong = fault
    if wrong:
        raise SettingsError(f"cert_principals: {text!r}: {wrong}")
    begin, star, end = pattern.partition("*")
    return Rule(kind, begin, end, not star, principal)


class Certificates:
    """The rules of a node.

    Args:
        rules: as the settings have them.
        permissions: what principals may do.
        admin: whom no certificate may name.

    Raises:
        SettingsError: one is no rule, or is about the administrator.
    """

    def __init__(self, rules: Sequence[str], permissions: Permissions, *, admin: str) -> None:
        self._rules = [rule_of(text) for text in rules]
        for rule, text in zip(self._rules, rules, strict=True):
            if rule.principal == admin:
                raise SettingsError(
                    f"cert_principals: {text!r}: a certificate does not make the administrator of the settings "
                    f"({admin!r}): name another principal, and give it rights (tidelog acl grant)"
                )
        self._permissions = permissions
        self._admin = admin

    def session_of(self, shown: Mapping[str, Any] | None) -> Session | None:
        """Return the session of who has shown a certificate that was verified; None where it makes nobody.

        It ends with the certificate. `shown` is as `ssl.SSLObject.getpeercert` returns it; None: none was shown.

        Raises:
            ProtocolError: UNAUTHENTICATED, the certificate names the administrator.
        """
        if not shown:
            return None
        for rule in self._rules:
            for name in _names(shown, rule.kind):
                principal = rule.principal_of(name)
                if principal is None or not _may_be(principal):
                    continue
                if principal == self._admin:
                    raise ProtocolError(
                        pb.UNAUTHENTICATED,
                        "a certificate does not make the administrator of the settings: give rights to another "
                        "principal; the administrator shows a key of admin_key_file",
                    )
                ends_us = int(ssl.cert_time_to_seconds(shown["notAfter"])) * 1_000_000
                return Session(self._permissions, principal, expires_us=ends_us)
        return None


def _names(shown: Mapping[str, Any], kind: str) -> Iterator[str]:
    if kind == "cn":
        yield from (value for part in shown.get("subject", ()) for name, value in part if name == "commonName")
    else:
        yield from (value for of, value in shown.get("subjectAltName", ()) if of == _ALTERNATIVES[kind])


def _may_be(principal: str) -> bool:
    """Whether a name can be a principal's: it comes from the certificate, and must not look like something else."""
    try:
        check_principal(principal)
    except ProtocolError:
        return False
    return True
