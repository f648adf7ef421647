"""Contexts: clusters under names, each with its addresses and with how to show who one is there.

All of a user's contexts stand in one JSON file: the one that TIDELOG_CONTEXTS names, else `tidelog/contexts.json` in
XDG_CONFIG_HOME or ~/.config. It may hold API keys, so it has to be readable by its owner alone. It is replaced as a
whole, by a rename, under a lock: two commands at a time lose nothing, and whoever reads sees one or the other.

The file has `format_version` 1, `current` (a name or null) and `contexts`, an object of name → context, whose members
are those of `Context` that are set. Members that are not known are refused: a newer Tidelog wrote them, and they may
say how the connection is to be protected.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

from tidelog.client_options import ClientOptions
from tidelog.cluster.connection_pool import parse_addresses
from tidelog.credentials import ApiKeyFile, Credentials, Password, TokenFile
from tidelog.errors import InvalidRequestError
from tidelog.tls import Tls

CONTEXT_VARIABLE: Final = "TIDELOG_CONTEXT"
CONTEXTS_VARIABLE: Final = "TIDELOG_CONTEXTS"
FILE_BYTES_MAX: Final = 1024 * 1024
CONTEXTS_MAX: Final = 1_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster and a way into it.

    Attributes:
        bootstrap: addresses of nodes, HOST:PORT, at least one.
        api_key: shown to nodes that ask who one is; "": none, or the one in the file.
        api_key_file: absolute path of a file with nothing but the key in it; read again for each connection.
        token_file: the same of a token (JWT).
        user: the name of a user with a password...
        password_file: ...and the same of that.
        tls: connect in TLS; implied by the files. False: the environment says.
        ca_file, cert_file, key_file, crl_file: absolute paths, as of `tidelog.tls.Tls`.
    """

    bootstrap: tuple[str, ...]
    api_key: str = field(default="", repr=False)
    api_key_file: str = ""
    token_file: str = ""
    user: str = ""
    password_file: str = ""
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    crl_file: str = ""

    def __post_init__(self) -> None:
        """Check all of it.

        Raises:
            InvalidRequestError: it is no context.
        """
        if not parse_addresses(self.bootstrap):
            raise InvalidRequestError("a context has the address of at least one node")
        if bool(self.user) != bool(self.password_file):
            raise InvalidRequestError("a context has a user and the file of the password, or neither")
        if sum(map(bool, (self.api_key, self.api_key_file, self.token_file, self.user))) > 1:
            raise InvalidRequestError("a context has an API key, the file of one, of a token, or a user: one of them")
        secrets = (self.api_key_file, self.token_file, self.password_file)
        for path in (*secrets, self.ca_file, self.cert_file, self.key_file, self.crl_file):
            if path and not Path(path).is_absolute():
                raise InvalidRequestError(f"the path of a file in a context is absolute, not {path!r}")
        self.encryption()

    def credentials(self) -> Credentials | None:
        """Return what `Client(credentials=)` takes; None where the context has none: those of the environment count."""
        if self.token_file:
            return TokenFile(self.token_file)
        if self.user:
            return Password(self.user, Path(self.password_file))
        return ApiKeyFile(self.api_key_file) if self.api_key_file else self.api_key or None

    def encryption(self) -> Tls | None:
        """Return what `Client(tls=)` takes; None where the context says nothing of it: the environment counts.

        Raises:
            InvalidRequestError: its files contradict each other.
        """
        files = (self.ca_file, self.cert_file, self.key_file)
        return Tls(*files, crl_file=self.crl_file) if self.tls or any(files) or self.crl_file else None

    def with_options(self, options: ClientOptions) -> ClientOptions:
        """Return the arguments of a client: these, and from the context what they leave out."""
        own: ClientOptions = {"tls": self.encryption()}
        if options.get("api_key") is None and options.get("credentials") is None:
            options = {**options, "credentials": self.credentials()}
        return {**own, **options}


@dataclass(frozen=True, slots=True)
class Contexts:
    """All that stands in the file: contexts by name, and which is used where none is named."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None


def contexts_path() -> Path:
    """Return where contexts are kept.

    Raises:
        InvalidRequestError: no variable says it, and this user has no home directory.
    """
    given = os.environ.get(CONTEXTS_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME")
    try:
        directory = Path(home) if home else Path.home() / ".config"
    except RuntimeError as error:  # no HOME, and no entry in the password database
        raise InvalidRequestError(
            f"this user (id {os.getuid()}) has no home directory to keep contexts in: set HOME or {CONTEXTS_VARIABLE}"
        ) from error
    return directory / "tidelog" / "contexts.json"


def read_contexts(path: Path | None = None) -> Contexts:
    """Return all contexts; none where there is no file yet.

    Raises:
        InvalidRequestError: the file is no such file, cannot be read, or others may read it.
    """
    path = path or contexts_path()
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise InvalidRequestError(f"cannot read contexts in {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidRequestError(f"others may read {path}, which can hold keys: chmod 600 {path}")
    if len(text) > FILE_BYTES_MAX:
        raise InvalidRequestError(f"{path} is larger than {FILE_BYTES_MAX} bytes: it is no file of contexts")
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, RecursionError, InvalidRequestError) as error:
        raise InvalidRequestError(f"{path} is no file of contexts: {error}") from error


def find_context(name: str | None = None) -> Context | None:
    """Return the context of that name, or of TIDELOG_CONTEXT, or else the current one; None where none is current.

    Raises:
        InvalidRequestError: there is none of that name; and as `read_contexts`.
    """
    name = name or os.environ.get(CONTEXT_VARIABLE)
    try:
        path = contexts_path()
    except InvalidRequestError:
        if name:
            raise
        return None  # without a home directory there is no file of contexts
    contexts = read_contexts(path)
    name = name or contexts.current
    if not name:
        return None
    found = contexts.by_name.get(name)
    if found is None:
        raise unknown_context(name, contexts)
    return found


def the_context(name: str | None = None) -> Context:
    """As `find_context`, where one is needed.

    Raises:
        InvalidRequestError: no context is current, either.
    """
    found = find_context(name)
    if found is None:
        raise InvalidRequestError("no context is named and none is current: tidelog context add NAME --bootstrap …")
    return found


def change_contexts(change: Callable[[Contexts], Contexts]) -> Contexts:
    """Replace what stands in the file by what `change` makes of it, while nobody else does; return that.

    Raises:
        InvalidRequestError: there would be too many, or the file cannot be read or written.
        Exception: what `change` raises; nothing has changed then.
    """
    path = contexts_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path.parent):
            changed = change(read_contexts(path))
            if len(changed.by_name) > CONTEXTS_MAX:
                raise InvalidRequestError(f"there are {CONTEXTS_MAX} contexts already: tidelog context remove NAME")
            _write(path, changed)
    except OSError as error:
        raise InvalidRequestError(f"cannot write contexts to {path}: {error.strerror}") from error
    return changed


def with_context(contexts: Contexts, name: str, context: Context, *, instead: bool, use: bool) -> Contexts:
    """Return them with one more; the first one is current at once.

    Raises:
        InvalidRequestError: it has no name that may be, or one that is taken and `instead` is not set.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"a context's name has 1 to 64 of A-Z a-z 0-9 . _ - and begins with none of the last "
            f"three, unlike {name[:80]!r}"
        )
    if name in contexts.by_name and not instead:
        raise InvalidRequestError(f"there is a context {name!r} already: take another name, or say --replace")
    current = name if use or contexts.current is None else contexts.current
    return Contexts({**contexts.by_name, name: context}, current)


def using(contexts: Contexts, name: str) -> Contexts:
    """Return them with another one current.

    Raises:
        InvalidRequestError: there is none of that name.
    """
    if name not in contexts.by_name:
        raise unknown_context(name, contexts)
    return replace(contexts, current=name)


def without_context(contexts: Contexts, name: str) -> Contexts:
    """Return them without one; if it was the current one, none is.

    Raises:
        InvalidRequestError: there is none of that name.
    """
    if name not in contexts.by_name:
        raise unknown_context(name, contexts)
    kept = {each: context for each, context in contexts.by_name.items() if each != name}
    return Contexts(kept, None if contexts.current == name else contexts.current)


def unknown_context(name: str, contexts: Contexts) -> InvalidRequestError:
    """Return the error of a name that no context has."""
    known = ", ".join(sorted(contexts.by_name)) or "none"
    return InvalidRequestError(f"there is no context {name[:80]!r}; there are: {known[:500]}")


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, contexts: Contexts) -> None:
    document = {
        "format_version": _VERSION,
        "current": contexts.current,
        "contexts": {name: _document(context) for name, context in sorted(contexts.by_name.items())},
    }
    # A temporary file is for its owner alone from the beginning.
    with NamedTemporaryFile("w", dir=path.parent, prefix=".contexts-", delete=False) as file:
        try:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _document(context: Context) -> dict[str, Any]:
    return {name: value for name, value in asdict(context).items() if value}


def _parsed(document: Any) -> Contexts:
    if not isinstance(document, dict):
        raise TypeError("it is no JSON object")
    if document.get("format_version") != _VERSION:
        raise ValueError(f"format_version is {document.get('format_version')!r}, and this Tidelog knows {_VERSION}")
    contexts, current = document.get("contexts"), document.get("current")
    if not isinstance(contexts, dict) or not (current is None or isinstance(current, str)):
        raise TypeError("`contexts` is an object, `current` a name or null")
    return Contexts({name: _context(name, members) for name, members in contexts.items()}, current)


def _context(name: str, members: Any) -> Context:
    known = {each.name for each in fields(Context)}
    if not isinstance(members, dict) or not known.issuperset(members):
        raise ValueError(f"context {name!r} has members besides {', '.join(sorted(known))}")
    bootstrap, tls = members.pop("bootstrap", None), members.pop("tls", False)
    if not isinstance(bootstrap, list) or not all(isinstance(each, str) for each in [*bootstrap, *members.values()]):
        raise TypeError(f"context {name!r}: `bootstrap` is a list of addresses, all others are text, but for `tls`")
    if not isinstance(tls, bool):
        raise TypeError(f"context {name!r}: `tls` is true or false")
    return Context(tuple(bootstrap), tls=tls, **members)
