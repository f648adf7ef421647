"""Contexts: named clusters, each with its addresses and the credentials to use there.

All contexts of a user are in one JSON file: the one that TIDELOG_CONTEXTS names, otherwise `tidelog/contexts.json` in
XDG_CONFIG_HOME or ~/.config. It may contain API keys, so only its owner may have access. The file is replaced
atomically by a rename, under a lock: concurrent commands lose no changes, and readers see either version.

The file has `format_version` 1, `current` (a name or null) and `contexts`, an object of name → context, whose members
are the fields of `Context` that are set. Unknown members are refused: a newer Tidelog may have written them, and they
may define how the connection is protected.
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

from tidelog.base.context_variable import CONTEXT_VARIABLE
from tidelog.client_options import ClientOptions
from tidelog.credentials import ApiKeyFile, Credentials, Password, TokenFile
from tidelog.errors import InvalidRequestError
from tidelog.tls import Tls

CONTEXTS_VARIABLE: Final = "TIDELOG_CONTEXTS"
FILE_BYTES_MAX: Final = 1024 * 1024
CONTEXTS_MAX: Final = 1_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster and how to connect to it.

    Attributes:
        bootstrap: addresses of nodes, HOST:PORT, at least one.
        api_key: the API key itself; "" without an API key; or the one in `api_key_file`.
        api_key_file: absolute path of a file that contains only the key; read again for each connection.
        token_file: absolute path of a file that contains only a token (JWT).
        user: name of a user with a password.
        password_file: absolute path of a file that contains only the user's password.
        tls: connect with TLS; implied by the TLS files below. False without TLS files: as the environment variables
            set.
        ca_file, cert_file, key_file, crl_file: absolute paths, see `tidelog.tls.Tls`.
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
        """Check the fields."""
        from tidelog.cluster.connection_pool import parse_addresses  # noqa: PLC0415 - most commands have no context

        if not parse_addresses(self.bootstrap):
            raise InvalidRequestError("a context needs the address of at least one node; give it as bootstrap")
        if bool(self.user) != bool(self.password_file):
            raise InvalidRequestError("a context needs both user and password_file, or neither")
        if sum(map(bool, (self.api_key, self.api_key_file, self.token_file, self.user))) > 1:
            raise InvalidRequestError("a context takes only one of api_key, api_key_file, token_file and user")
        secrets = (self.api_key_file, self.token_file, self.password_file)
        for path in (*secrets, self.ca_file, self.cert_file, self.key_file, self.crl_file):
            if path and not Path(path).is_absolute():
                raise InvalidRequestError(f"file paths in a context must be absolute, got {path!r}")
        self.encryption()

    def credentials(self) -> Credentials | None:
        """Return the argument for `Client(credentials=)`; None to use the environment's."""
        if self.token_file:
            return TokenFile(self.token_file)
        if self.user:
            return Password(self.user, Path(self.password_file))
        return ApiKeyFile(self.api_key_file) if self.api_key_file else self.api_key or None

    def encryption(self) -> Tls | None:
        """Return the argument for `Client(tls=)`; None to use the environment's.

        Raises:
            InvalidRequestError: the context's TLS files contradict each other.
        """
        files = (self.ca_file, self.cert_file, self.key_file)
        return Tls(*files, crl_file=self.crl_file) if self.tls or any(files) or self.crl_file else None

    def with_options(self, options: ClientOptions) -> ClientOptions:
        """Return client arguments: the given ones, completed from the context."""
        own: ClientOptions = {"tls": self.encryption()}
        if options.get("api_key") is None and options.get("credentials") is None:
            options = {**options, "credentials": self.credentials()}
        return {**own, **options}


@dataclass(frozen=True, slots=True)
class Contexts:
    """The content of the contexts file: contexts by name, and the name of the current one."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None


def contexts_path() -> Path:
    """Return the path of the contexts file.

    Raises:
        InvalidRequestError: no environment variable names it, and the user has no home directory.
    """
    path_text = os.environ.get(CONTEXTS_VARIABLE)
    if path_text:
        return Path(path_text)
    home = os.environ.get("XDG_CONFIG_HOME")
    try:
        directory = Path(home) if home else Path.home() / ".config"
    except RuntimeError as error:  # HOME is not set, and the password database has no entry.
        raise InvalidRequestError(
            f"user id {os.getuid()} has no home directory for the contexts file: set HOME or {CONTEXTS_VARIABLE}"
        ) from error
    return directory / "tidelog" / "contexts.json"


def read_contexts(path: Path | None = None) -> Contexts:
    """Return all contexts; none if the file does not exist.

    Args:
        path: the file; None: `contexts_path()`.

    Raises:
        InvalidRequestError: the file is malformed, unreadable, or accessible to other users; and as `contexts_path`.
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
        raise InvalidRequestError(f"other users have access to {path}, which can contain keys; run: chmod 600 {path}")
    if len(text) > FILE_BYTES_MAX:
        raise InvalidRequestError(
            f"{path} is not a contexts file: it is larger than {FILE_BYTES_MAX} bytes; set {CONTEXTS_VARIABLE} to "
            "another file"
        )
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, RecursionError, InvalidRequestError) as error:
        raise InvalidRequestError(
            f"{path} is not a valid contexts file: {error}; correct it, or set {CONTEXTS_VARIABLE} to another file"
        ) from error


def find_context(name: str | None = None) -> Context | None:
    """Return the context named by the argument, by TIDELOG_CONTEXT, or the current one; None without a current context.

    Raises:
        InvalidRequestError: the named context does not exist; and as `read_contexts`.
    """
    name = name or os.environ.get(CONTEXT_VARIABLE)
    try:
        path = contexts_path()
    except InvalidRequestError:
        if name:
            raise
        return None  # Without a home directory no contexts file exists.
    contexts = read_contexts(path)
    name = name or contexts.current
    if not name:
        return None
    context = contexts.by_name.get(name)
    if context is None:
        raise unknown_context(name, contexts)
    return context


def require_context(name: str | None = None) -> Context:
    """Return the context named by the argument, by TIDELOG_CONTEXT, or the current one.

    Raises:
        InvalidRequestError: no context is named and none is current; and as `find_context`.
    """
    context = find_context(name)
    if context is None:
        raise InvalidRequestError(
            "no cluster is selected: pass bootstrap= to Client, or select a context with: tidelog context use NAME "
            "(create it with: tidelog context add NAME --bootstrap …). TIDELOG_BOOTSTRAP applies only to commands"
        )
    return context


def change_contexts(change: Callable[[Contexts], Contexts]) -> Contexts:
    """Replace the content of the file by the result of `change`, under a lock; return the result.

    Raises:
        InvalidRequestError: too many contexts, or the file cannot be read or written.
        Exception: raised by `change`; the file is unchanged then.
    """
    path = contexts_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _exclusive_lock(path.parent):
            changed = change(read_contexts(path))
            if len(changed.by_name) > CONTEXTS_MAX:
                raise InvalidRequestError(
                    f"the limit of {CONTEXTS_MAX} contexts is reached; remove one with: tidelog context remove NAME"
                )
            _write(path, changed)
    except OSError as error:
        raise InvalidRequestError(f"cannot write contexts to {path}: {error.strerror}") from error
    return changed


def with_context(contexts: Contexts, name: str, context: Context, *, instead: bool, use: bool) -> Contexts:
    """Return the contexts after adding or replacing one.

    Args:
        instead: whether to replace an existing context of this name.
        use: whether to make the context the current one; it also becomes current if no context is.

    Raises:
        InvalidRequestError: the name is invalid, or exists and `instead` is not set.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidRequestError(
            f"invalid context name {name[:80]!r}: use 1 to 64 characters of A-Z a-z 0-9 . _ -, beginning with a letter "
            "or digit"
        )
    if name in contexts.by_name and not instead:
        raise InvalidRequestError(f"context {name!r} exists already; choose another name or add --replace")
    current = name if use or contexts.current is None else contexts.current
    return Contexts({**contexts.by_name, name: context}, current)


def using(contexts: Contexts, name: str) -> Contexts:
    """Return the contexts with the named one as the current one.

    Raises:
        InvalidRequestError: the context does not exist.
    """
    if name not in contexts.by_name:
        raise unknown_context(name, contexts)
    return replace(contexts, current=name)


def without_context(contexts: Contexts, name: str) -> Contexts:
    """Return the contexts without the named one; if that was the current one, no context is current.

    Raises:
        InvalidRequestError: the context does not exist.
    """
    if name not in contexts.by_name:
        raise unknown_context(name, contexts)
    remaining = {each: context for each, context in contexts.by_name.items() if each != name}
    return Contexts(remaining, None if contexts.current == name else contexts.current)


def unknown_context(name: str, contexts: Contexts) -> InvalidRequestError:
    """Return the error for a context that does not exist."""
    known = ", ".join(sorted(contexts.by_name)) or "none"
    return InvalidRequestError(f"context {name[:80]!r} does not exist; known contexts: {known[:500]}")


@contextmanager
def _exclusive_lock(directory: Path) -> Iterator[None]:
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
    # `NamedTemporaryFile` creates the file with mode 600.
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
        raise TypeError("it is not a JSON object")
    if document.get("format_version") != _VERSION:
        raise ValueError(
            f"its format_version is {document.get('format_version')!r}, and this release of Tidelog supports only "
            f"{_VERSION} (a newer release may have written it)"
        )
    contexts, current = document.get("contexts"), document.get("current")
    if not isinstance(contexts, dict) or not (current is None or isinstance(current, str)):
        got = f"{type(contexts).__name__} and {type(current).__name__}"
        raise TypeError(f"`contexts` must be an object and `current` a name or null, got {got}")
    return Contexts({name: _context(name, members) for name, members in contexts.items()}, current)


def _context(name: str, members: Any) -> Context:
    known = {each.name for each in fields(Context)}
    if not isinstance(members, dict) or not known.issuperset(members):
        got = ", ".join(sorted(set(members) - known)) if isinstance(members, dict) else type(members).__name__
        raise ValueError(
            f"context {name!r} must be an object with no other members than {', '.join(sorted(known))}; got {got:.80}"
        )
    bootstrap, tls = members.pop("bootstrap", None), members.pop("tls", False)
    if not isinstance(bootstrap, list) or not all(isinstance(each, str) for each in [*bootstrap, *members.values()]):
        raise TypeError(
            f"context {name!r}: `bootstrap` must be a list of strings, and each other member except `tls` a string"
        )
    if not isinstance(tls, bool):
        raise TypeError(f"context {name!r}: `tls` must be true or false, got {tls!r:.80}")
    return Context(tuple(bootstrap), tls=tls, **members)
