"""Authentication of clients by certificate: rules that map names in a certificate to principals.

A rule is `KIND:PATTERN=PRINCIPAL`. KIND selects the names: `uri`, `dns` or `email` of the subject alternative names, or
`cn`, the common name of the subject. PATTERN is a name in which one `*` matches any part that is
not empty; a `*` in PRINCIPAL is replaced by the matched part, which is percent-decoded for `uri`. The first rule that
results in a valid principal is used. No certificate maps to the administrator principal (setting `admin`), since the
CA's users could then choose to be the administrator.
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
    """One rule: the kind of name, the text before and after its variable part, and the principal."""

    kind: str
    begin: str
    end: str
    is_exact: bool
    principal: str

    def principal_of(self, name: str) -> str | None:
        """Return the principal for a name; None if the rule does not match."""
        if self.is_exact:
            return self.principal if name == self.begin else None
        fits = len(name) > len(self.begin) + len(self.end) and name.startswith(self.begin) and name.endswith(self.end)
        if not fits:
            return None
        part = name[len(self.begin) : len(name) - len(self.end)]
        if self.kind == "uri":
            try:
                part = unquote_to_bytes(part).decode()
            except UnicodeDecodeError:  # With a replacement character many names would map to one principal.
                return None
        return self.principal.replace("*", part)


def rule_of(text: str) -> Rule:
    """Parse a rule of the settings.

    Raises:
        SettingsError: it is invalid.
    """
    kind, colon, rest = text.partition(":")
    pattern, equals, principal = rest.rpartition("=")
    wrong = ""
    if not colon or not equals or not pattern or not principal:
        wrong = "a rule has the form KIND:PATTERN=PRINCIPAL, like uri:tidelog:client:*=*"
    elif kind not in {*_ALTERNATIVES, "cn"}:
        wrong = f"the kind must be cn, uri, dns or email, got {kind!r}"
    elif pattern.count("*") > 1 or principal.count("*") > pattern.count("*"):
        wrong = "a pattern may have one *, and a principal one * only if the pattern has it"
    elif "*" not in principal and (fault := principal_name_fault(principal)) is not None:
        wrong = fault
    if wrong:
        raise SettingsError(f"cert_principals: {text!r}: {wrong}")
    begin, star, end = pattern.partition("*")
    return Rule(kind, begin, end, not star, principal)


class Certificates:
    """Authenticates clients by the certificate rules of a node.

    Args:
        admin: name of the administrator principal (setting `admin`), which no certificate may name.

    Raises:
        SettingsError: a rule is invalid or names the administrator.
    """

    def __init__(self, rules: Sequence[str], permissions: Permissions, *, admin: str) -> None:
        self._rules = [rule_of(text) for text in rules]
        for rule, text in zip(self._rules, rules, strict=True):
            if rule.principal == admin:
                raise SettingsError(
                    f"cert_principals: {text!r}: a certificate cannot name the administrator of the settings "
                    f"({admin!r}); name another principal, and grant it rights (tidelog acl grant PRINCIPAL OPERATIONS "
                    "RESOURCE)"
                )
        self._permissions = permissions
        self._admin = admin

    def session_of(self, certificate: Mapping[str, Any] | None) -> Session | None:
        """Return the session for a verified certificate; it ends when the certificate expires.

        Args:
            certificate: the result of `ssl.SSLObject.getpeercert`; None if the client has no certificate.

        Returns:
            None without a certificate, or if no rule results in a valid principal for its names.

        Raises:
            ProtocolError: UNAUTHENTICATED, the certificate names the administrator.
        """
        if not certificate:
            return None
        for rule in self._rules:
            for name in _names(certificate, rule.kind):
                principal = rule.principal_of(name)
                if principal is None or not _may_be(principal):
                    continue
                if principal == self._admin:
                    raise ProtocolError(
                        pb.UNAUTHENTICATED,
                        f"the {rule.kind} {name!r} of the certificate maps to the administrator {principal!r}, who can "
                        "only use keys of admin_key_file; use such a key, or map it to another principal that has "
                        "rights",
                    )
                ends_us = int(ssl.cert_time_to_seconds(certificate["notAfter"])) * 1_000_000
                return Session(self._permissions, principal, expires_us=ends_us)
        return None


def _names(certificate: Mapping[str, Any], kind: str) -> Iterator[str]:
    if kind == "cn":
        yield from (value for part in certificate.get("subject", ()) for name, value in part if name == "commonName")
    else:
        yield from (value for of, value in certificate.get("subjectAltName", ()) if of == _ALTERNATIVES[kind])


def _may_be(principal: str) -> bool:
    """Return whether a name from a certificate is a valid principal."""
    try:
        check_principal(principal)
    except ProtocolError:
        return False
    return True
