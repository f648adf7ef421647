"""Addresses, TLS and credentials for the cluster, from options, a context and the environment.

These settings are read on the driver, where the query is planned, and pickled for the tasks together with the contents
of files, because the files and variables may be missing on the machines of the tasks. A task first tries to read the
file of a key, token or password itself, so that renewed credentials are used if all machines have the file.

Secrets are only accepted in files, not as options: Spark shows options in plans, in its UI and in its event log.
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
"""Option of other sources, in lower case -> the option here; `from_kafka.py` has those of Kafka."""
_CLIENT_ID: Final = "spark"
SECRETS: Final = {"apikey": "apiKeyFile", "api_key": "apiKeyFile", "token": "tokenFile", "password": "passwordFile"}
"""Names of options that would contain a secret, in lower case, and the options for a file instead."""


@dataclass(frozen=True, slots=True)
class Access:
    """The settings with which the driver and the tasks connect to the cluster.

    Attributes:
        bootstrap: addresses of nodes, "host:port".
        credentials: credentials for nodes; None for those in a task's environment.
        tls: TLS settings; None for plain connections.
    """

    bootstrap: tuple[str, ...]
    credentials: Credentials | None = field(default=None, repr=False)
    tls: Tls | None = field(default=None, repr=False)

    @property
    def client_options(self) -> ClientOptions:
        """The options of a client except the addresses."""
        return {"client_id": _CLIENT_ID, "credentials": self.credentials, "tls": self.tls or False}


def access_of(options: Mapping[str, str]) -> Access:
    """Return the access settings from the options, then the context, then the environment.

    Raises:
        OptionError: the address is missing or given twice, options contradict each other, or a file cannot be read.
    """
    addresses, context = comma_list(options.get("bootstrap", "")), options.get("context")
    if addresses and context:
        raise OptionError("options 'bootstrap' and 'context' are mutually exclusive: give one of them.")
    if not addresses and not context:
        # Spark passes the OPTIONS of CREATE TABLE to a Python source when the table is created, but not when it is
        # read.
        hint = "" if options else " (A table does not keep its OPTIONS: use CREATE TEMPORARY VIEW.)"
        raise OptionError(f"option 'bootstrap' is missing: give the address of a node, such as '127.0.0.1:7400'.{hint}")
    own_credentials, own_tls = _credentials(options), _tls(options)
    try:
        context_settings = require_context(context) if context else Context(addresses)
        credentials = carried(own_credentials or context_settings.credentials())
        tls_argument = (
            own_tls if own_tls is False or isinstance(own_tls, Tls) else context_settings.encryption() or own_tls
        )
        tls = tls_of(tls_argument)
        return Access(context_settings.bootstrap, credentials, None if tls is None else tls.carried())
    except InvalidRequestError as error:
        raise OptionError(f"option 'context': {error}" if context else str(error)) from error


def _credentials(options: Mapping[str, str]) -> Credentials | None:
    names = [name for name in ("apiKeyFile", "tokenFile", "user") if options.get(name)]
    if len(names) > 1:
        raise OptionError(f"options {' and '.join(map(repr, names))} are mutually exclusive: give one of them.")
    if bool(options.get("user")) != bool(options.get("passwordFile")):
        raise OptionError("options 'user' and 'passwordFile' must be given together: give both or neither.")
    if not names:
        return None
    if names == ["user"]:
        try:
            return Password(options["user"], _path("passwordFile", options))
        except InvalidRequestError as error:
            raise OptionError(f"option 'user': {error}") from error
    path = _path(names[0], options)
    return ApiKeyFile(path) if names == ["apiKeyFile"] else TokenFile(path)


def _tls(options: Mapping[str, str]) -> Tls | bool | None:
    """Return the argument of `tls_of`; None if the options do not set TLS."""
    files = {name: options[name] for name in ("caFile", "certFile", "keyFile", "crlFile") if options.get(name)}
    if "tls" in options and not flag(options, "tls", default=True):
        if files:
            raise OptionError(
                f"option 'tls' is 'false', but {', '.join(map(repr, files))} require TLS: omit one or the other."
            )
        return False
    if "keyFile" in files and "certFile" not in files:
        raise OptionError("option 'keyFile' requires 'certFile': give both, or the key in 'certFile'.")
    if not files:
        return True if "tls" in options else None
    paths = {name: str(_path(name, files)) for name in files}
    own = (paths.get("caFile", ""), paths.get("certFile", ""), paths.get("keyFile", ""))
    return Tls(*own, crl_file=paths.get("crlFile", ""))


def _path(name: str, options: Mapping[str, str]) -> Path:
    text = options[name]
    if "\0" in text:
        raise OptionError(f"option {name!r} is not a valid path: it contains a null character.")
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # `expanduser` does not know the user
        raise OptionError(f"option {name!r} is not a valid path: {error}") from error
