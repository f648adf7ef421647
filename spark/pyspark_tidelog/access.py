"""Where the cluster is, how it is reached, and who asks: by options, a context and the environment.

All of it is read where the query is planned, and travels to the tasks pickled, with what the files hold: tasks run
where neither file nor environment may be. A task looks for the file of a key, token or password by itself first, so
that a stream goes on with what is renewed, where all machines have the file.

Secrets are named by files and never options themselves: Spark shows options in plans, in its UI and in its event log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import comma_list, flag
from tidelog.client_options import ClientOptions
from tidelog.cluster.contexts import Context, require_context
from tidelog.credentials import ApiKeyFile, Credentials, Password, TokenFile, carried
from tidelog.errors import InvalidRequestError
from tidelog.tls import Tls, tls_of

ACCESS_OPTION_NAMES: Final = (
    "bootstrap",
    "context",
    "apiKeyFile",
    "tokenFile",
    "user",
    "passwordFile",
    "tls",
    "caFile",
    "certFile",
    "keyFile",
    "crlFile",
)
ACCESS_FOREIGN: Final = {"servers": "bootstrap"}
"""Names that people bring along from elsewhere, in lower case; those of Kafka's have a table of their own."""
_CLIENT_ID: Final = "spark"
SECRETS: Final = {"apikey": "apiKeyFile", "api_key": "apiKeyFile", "token": "tokenFile", "password": "passwordFile"}
"""What would be a secret in an option, in lower case, and the option that names its file instead."""


@dataclass(frozen=True, slots=True)
class Access:
    """How tasks reach the cluster.

    Attributes:
        bootstrap: addresses of nodes, "host:port".
        credentials: what nodes are shown that ask who one is; None: what the environment of a task has.
        tls: how nodes are reached; None: not in TLS.
    """

    bootstrap: tuple[str, ...]
    credentials: Credentials | None = field(default=None, repr=False)
    tls: Tls | None = field(default=None, repr=False)

    @property
    def client_options(self) -> ClientOptions:
        """The arguments of a client but the addresses."""
        return {"client_id": _CLIENT_ID, "credentials": self.credentials, "tls": self.tls or False}


def access_of(options: Mapping[str, str]) -> Access:
    """Return what the options say; what they leave out the context says, and else the environment.

    Raises:
        OptionError: they say neither or both of where the cluster is, contradict each other, or name what is not to be
            had.
    """
    addresses, context = comma_list(options.get("bootstrap", "")), options.get("context")
    if addresses and context:
        raise OptionError("options 'bootstrap' and 'context' both say where the cluster is: give one of them.")
    if not addresses and not context:
        # Spark hands the OPTIONS of CREATE TABLE to a Python source when the table is made, and not when it is read.
        hint = "" if options else " (A table does not keep its OPTIONS: use CREATE TEMPORARY VIEW.)"
        raise OptionError(f"option 'bootstrap' is missing: give the address of a node, such as '127.0.0.1:7400'.{hint}")
    own_credentials, own_tls = _credentials(options), _tls(options)
    try:
        named = require_context(context) if context else Context(addresses)
        credentials = carried(own_credentials or named.credentials())
        wanted = own_tls if own_tls is False or isinstance(own_tls, Tls) else named.encryption() or own_tls
        tls = tls_of(wanted)
        return Access(named.bootstrap, credentials, None if tls is None else tls.carried())
    except InvalidRequestError as error:
        raise OptionError(f"option 'context': {error}" if context else str(error)) from error


def _credentials(options: Mapping[str, str]) -> Credentials | None:
    given = [name for name in ("apiKeyFile", "tokenFile", "user") if options.get(name)]
    if len(given) > 1:
        raise OptionError(f"options {' and '.join(map(repr, given))} each say who asks: give one of them.")
    if bool(options.get("user")) != bool(options.get("passwordFile")):
        raise OptionError("options 'user' and 'passwordFile' belong together: give both or neither.")
    if not given:
        return None
    if given == ["user"]:
        try:
            return Password(options["user"], _path("passwordFile", options))
        except InvalidRequestError as error:
            raise OptionError(f"option 'user': {error}") from error
    path = _path(given[0], options)
    return ApiKeyFile(path) if given == ["apiKeyFile"] else TokenFile(path)


def _tls(options: Mapping[str, str]) -> Tls | bool | None:
    """Return what `tls_of` takes; None: the options do not say."""
    files = {name: options[name] for name in ("caFile", "certFile", "keyFile", "crlFile") if options.get(name)}
    if "tls" in options and not flag(options, "tls", default=True):
        if files:
            raise OptionError(f"option 'tls' is false, and {', '.join(files)} are for TLS: leave them out.")
        return False
    if "keyFile" in files and "certFile" not in files:
        raise OptionError("option 'keyFile' is of no use without its certificate: give 'certFile', too.")
    if not files:
        return True if "tls" in options else None
    paths = {name: str(_path(name, files)) for name in files}
    own = (paths.get("caFile", ""), paths.get("certFile", ""), paths.get("keyFile", ""))
    return Tls(*own, crl_file=paths.get("crlFile", ""))


def _path(name: str, options: Mapping[str, str]) -> Path:
    text = options[name]
    if "\0" in text:
        raise OptionError(f"option {name!r} is no path of a file: it has a null character in it.")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # there is no such user
        raise OptionError(f"option {name!r} is no path of a file: {error}") from error
