"""The data directory of a node: its identity, its lock, and the node's incarnation.

`node.json` holds the format version, node id and cluster id, the boot counter (incremented durably at every open), the
kernel's boot id of the last open, whether the last stop was clean, whether the cluster has admitted the node, whether
some log has yet to record a machine crash, the directory's random id, and the directories to which other founders are
bound (`core.membership.admission`). `node.json` is the last file created in a new directory: if it exists, the journals
were created before, so a missing journal was lost; if it is missing, the directory must have no data. The incarnation
consists of the boot counter and a nonce, see `core.incarnation`. A directory of another version or cluster, or with
foreign files, is refused.

A new directory is created for one of three kinds of node; an existing one knows its kind:

    single     no cluster id is given: the node generates one and has no peers to ask, so it is admitted at once
    founder    cluster and node id are given, both from the bootstrap file
    joiner     the cluster id is given, and the node generates a node id unless one is given

Founders and joiners begin unadmitted: before its first vote the node has the cluster agree that its id belongs to this
directory (see `node.directory_admission`) and then calls `mark_admitted`. Without the admission, a node with a wiped
disk would return under its old id without its promises. The admission is stored durably and separately from the boot
counter, so that neither a crash between the two nor repeated starts make an empty directory count as admitted.

Version 1 had neither the directory's id nor bindings. Such a directory gets its id when it is opened, and stays
admitted if it was. A build of version 1 would drop the bindings at its next write, so it must not open this one.
Version 2 had no journal of incarnations and no refusal; an empty journal is created when such a directory is opened.

A directory that other nodes have found to be an older copy of itself (`core.rollback_detection`) is refused at every
later start: `mark_refused` stores the reason.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tidelog_broker.core.incarnation import BOOT_COUNTER_MAX, NONCE_BITS, make_incarnation
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES, NODES_MAX
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.errors import (
    DamagedError,
    NodeDirError,
    NodeDirLockedError,
    OldCopyError,
    StorageError,
)
from tidelog_broker.storage.io.filesystem import File, FileSystem, RealFileSystem
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.incarnation_journal import INCARNATIONS
from tidelog_broker.storage.node.journal import JOURNAL_REMEDY
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.meta_snapshot import load_meta_snapshot, save_meta_snapshot
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import CLUSTER_ID_BYTES

FORMAT_VERSION: Final = 3
_FIRST_WITH_INCARNATIONS: Final = 3
_VERSIONS_READ: Final = (1, 2, FORMAT_VERSION)
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_NODE_JSON_BYTES_MAX: Final = 1024 * 1024
"""Size limit of node.json: the bindings of the largest number of founders fit, with ids of at most 128 bytes."""
_NODE_JSON: Final = "node.json"
_LOCK: Final = "lock"
_META: Final = "meta"
_JOURNAL: Final = "journal"
_FENCES: Final = "fences"
_INCARNATIONS: Final = "lives"
_STATE: Final = "state"
_PARTITIONS: Final = "partitions"
_ENGINES: Final = "engines"
COMMIT_LOG: Final = "commit-log"
"""The name of the commit log's directory."""
_OURS_WHILE_NEW: Final = {_NODE_JSON + NEW_SUFFIX, _LOCK, _META, _PARTITIONS, "lost+found"}
"""Names allowed in a directory without a node.json: those of an interrupted creation, or of the file system."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The contents of node.json. The boot counter is below its maximum, so that one more start is possible."""

    format_version: int
    node_id: str
    cluster_id: str
    boot_counter: int
    boot_id: str
    stopped_cleanly: bool
    admitted: bool
    unnoted_reboot: bool
    directory_id: str
    bound: dict[str, str] = field(default_factory=dict[str, str])
    refused: str = ""
    """Why the cluster refuses this directory permanently; empty unless it does."""


class NodeDir:
    """An open, locked data directory. Made by `open_node_dir`; `close` releases it."""

    def __init__(
        self, fs: FileSystem, path: Path, lock: File, record: NodeRecord, *, nonce: int, machine_rebooted: bool
    ) -> None:
        self.path = path
        self.node_id = record.node_id
        self.cluster_id = bytes.fromhex(record.cluster_id)
        self.incarnation = make_incarnation(record.boot_counter, nonce)
        self.machine_rebooted = machine_rebooted
        """Whether the machine crashed: the kernel's boot id has changed and the last stop was not clean.

        Stays True at every start until each log has recorded the crash, see `mark_reboot_noted`.
        """
        self._fs = fs
        self._lock = lock
        self._record = record
        self._closed = False
        self._writing = threading.Lock()
        """Held while the record is read and rewritten, and while the directory is closed."""

    @property
    def partitions(self) -> Path:
        """The directory of the partitions' directories."""
        return self.path / _PARTITIONS

    @property
    def engines(self) -> Path:
        """The directory for data that storage engines keep outside the partitions' directories."""
        return self.path / _ENGINES

    @property
    def commit_log(self) -> Path:
        """The directory of the commit log, which exists once a partition has used it."""
        return self.path / COMMIT_LOG

    @property
    def meta_journal(self) -> Path:
        """The file of the metadata journal."""
        return self.path / _META / _JOURNAL

    @property
    def fences(self) -> Path:
        """The file of the fence journal."""
        return self.path / _META / _FENCES

    @property
    def incarnations(self) -> Path:
        """The file of the journal of incarnations."""
        return self.path / _META / _INCARNATIONS

    @property
    def meta_state(self) -> Path:
        """The file of the `__meta` snapshot."""
        return self.path / _META / _STATE

    @property
    def directory_id(self) -> bytes:
        """The directory's id, 16 random bytes: it differs even between directories of the same node id."""
        return bytes.fromhex(self._record.directory_id)

    @property
    def admitted(self) -> bool:
        """Whether the cluster has admitted this node; until then an empty directory may be a wiped one."""
        return self._record.admitted

    def mark_admitted(self) -> None:
        """Record that the cluster has assigned this node's id to this directory; then the node may vote.

        Raises:
            NodeDirError: node.json could not be written; the node must not vote.
        """
        if not self.admitted:
            self._rewrite(lambda record: replace(record, admitted=True))

    def bound(self, node_id: str) -> bytes:
        """Return the directory id to which a founder is bound; empty if it is not bound."""
        return bytes.fromhex(self._record.bound.get(node_id, ""))

    def bind(self, node_id: str, directory_id: bytes) -> bytes:
        """Bind another founder permanently to its directory; return the id of the directory that it is bound to now.

        Thread-safe.

        Raises:
            NodeDirError: node.json could not be written, so the binding does not count; or the limit of bindings is
                reached.
        """
        assert len(directory_id) == DIRECTORY_ID_BYTES

        def bound(record: NodeRecord) -> NodeRecord:
            if node_id in record.bound:
                return record
            if len(record.bound) >= NODES_MAX:
                raise NodeDirError(
                    f"the data directory of node {node_id!r} cannot be added to {self.path / _NODE_JSON}, which "
                    f"already lists {NODES_MAX}, the maximum"
                )
            return replace(record, bound=record.bound | {node_id: directory_id.hex()})

        self._rewrite(bound)
        return self.bound(node_id)

    def mark_refused(self, why: str) -> None:
        """Record that this directory is an older copy, so that every later start is refused.

        Nothing is written if another process has opened this directory since, on a file system without locks.

        Raises:
            NodeDirError: node.json could not be written; the next start asks the cluster again.
        """
        try:
            on_disk = _read_record(self._fs, self.path)
        except OSError as error:
            raise NodeDirError(f"{self.path / _NODE_JSON} cannot be read: {error}; check the disk") from error
        if (on_disk.directory_id, on_disk.boot_counter) == (self._record.directory_id, self._record.boot_counter):
            self._rewrite(lambda record: replace(record, refused=why))

    def mark_reboot_noted(self) -> None:
        """Record that every log has durably recorded the machine crash.

        Raises:
            NodeDirError: node.json could not be written; every log records the crash again at the next start.
        """
        if self._record.unnoted_reboot:
            self._rewrite(lambda record: replace(record, unnoted_reboot=False))

    def mark_clean(self) -> None:
        """Record a clean stop. Call it last, when every log is synced and closed.

        Raises:
            NodeDirError: node.json could not be written; the next start treats this stop as a crash.
        """
        self._rewrite(lambda record: replace(record, stopped_cleanly=True))

    def _rewrite(self, change: Callable[[NodeRecord], NodeRecord]) -> None:
        with self._writing:
            if self._closed:  # Without the lock another process may have opened the directory.
                raise NodeDirError(f"the data directory {self.path} is closed, so {_NODE_JSON} cannot be written")
            record = change(self._record)
            if record is self._record:
                return
            try:
                _write_record(self._fs, self.path, record)
            except OSError as error:
                raise NodeDirError(
                    f"{self.path / _NODE_JSON} cannot be written: {error}; check the disk and its free space"
                ) from error
            self._record = record

    def close(self) -> None:
        """Release the lock."""
        with self._writing:
            if not self._closed:
                self._closed = True
                self._lock.close()


def open_node_dir(
    path: Path,
    *,
    fs: FileSystem | None = None,
    node_id: str | None = None,
    cluster_id: bytes | None = None,
    replaces: bool = False,
) -> NodeDir:
    """Lock a data directory, creating it if it is missing or empty, and begin a new incarnation.

    Args:
        path: the directory; its parents are created, too.
        node_id: the id of a new node (generated by default); an existing directory must have this id.
        cluster_id: the 16-byte id of a new node's cluster (generated by default, for a single node); an existing
            directory must have this id.
        replaces: create a replacement, under a generated id, for the node `node_id` that has lost its data. The
            directory must not be that of the old node; an existing directory of a replacement is opened as usual.

    Raises:
        NodeDirLockedError: another process has the directory open; the message has the id of that process.
        OldCopyError: other nodes have found the directory to be an older copy.
        NodeDirError: foreign files, another version, another node or cluster, damage, or no permission.
    """
    assert cluster_id is None or len(cluster_id) == CLUSTER_ID_BYTES
    files: FileSystem = fs or RealFileSystem()
    try:
        _make_dirs(files, path)
        if is_new_dir(path, fs=files):
            _keep_names(files, path)
        lock = _lock_dir(files, path)
        try:
            return _begin(files, path, lock, _ExpectedIds(node_id, cluster_id, replaces=replaces))
        except BaseException:
            lock.close()
            raise
    except OSError as error:
        raise NodeDirError(
            f"the data directory {path} cannot be used: {error}; check the disk, its free space and the permissions"
        ) from error


def relabel(path: Path, cluster_id: bytes, nodes: Collection[pb.NodeRecord]) -> str:
    """Change the cluster id of a copy of a node's data directory, and return the node's id.

    A node that starts on the copy only connects to nodes of the new cluster, at the given addresses. The journal of
    incarnations and a refusal are dropped, because they concern nodes of the old cluster.

    Args:
        path: the directory, which no process uses.
        cluster_id: 16 bytes, different from the current id.
        nodes: the nodes of the new cluster with their ids and addresses; other nodes keep their addresses.

    Raises:
        NodeDirError: `path` is not a data directory, is in use, has that cluster id already, or cannot be written.
    """
    assert len(cluster_id) == CLUSTER_ID_BYTES
    fs = RealFileSystem()
    try:
        if is_new_dir(path, fs=fs):
            raise NodeDirError(
                f"{path} is not a Tidelog data directory: it has no {_NODE_JSON}; give the path that the node gets as "
                "--data"
            )
        with closing(_lock_dir(fs, path)):
            old = _read_record(fs, path)
            if old.cluster_id == cluster_id.hex():
                raise NodeDirError(
                    f"{path} already belongs to cluster {old.cluster_id}; give the bootstrap file of another cluster"
                )
            incarnations = path / _META / _INCARNATIONS
            if fs.exists(incarnations):
                fs.unlink(incarnations)
            _make_incarnation_journal(fs, path)
            _move_nodes(fs, path / _META / _STATE, nodes)
            _write_record(
                fs, path, replace(old, format_version=FORMAT_VERSION, cluster_id=cluster_id.hex(), refused="")
            )
            return old.node_id
    except OSError as error:
        raise NodeDirError(
            f"the data directory {path} cannot be used: {error}; check the disk, its free space and the permissions"
        ) from error


def _move_nodes(fs: FileSystem, state: Path, nodes: Collection[pb.NodeRecord]) -> None:
    """Replace nodes' addresses in the `__meta` snapshot."""
    snapshot, moved = load_meta_snapshot(fs, state), {node.node_id: node for node in nodes}
    if snapshot is None:
        return
    for number, value in enumerate(snapshot.records):
        record = pb.MetaRecord.FromString(value)
        if record.HasField("node") and record.node.node_id in moved:
            to = moved[record.node.node_id]
            record.node.host, record.node.port = to.host, to.port
            record.node.gossip_host, record.node.gossip_port = to.gossip_host, to.gossip_port
            snapshot.records[number] = record.SerializeToString()
    save_meta_snapshot(fs, state, snapshot)


def is_new_dir(path: Path, *, fs: FileSystem | None = None) -> bool:
    """Return whether no node has used the directory yet, so that `open_node_dir` would create one."""
    return not (fs or RealFileSystem()).exists(path / _NODE_JSON)


def _make_dirs(fs: FileSystem, path: Path) -> None:
    if not fs.exists(path):
        _make_dirs(fs, path.parent)
        fs.make_dir(path)
    elif not fs.is_dir(path):
        raise NodeDirError(f"{path} is not a directory; give another path for the data directory")


def _keep_names(fs: FileSystem, path: Path) -> None:
    """Make the name of a new directory durable, and those of its parents up to the root.

    Existing parents, too: an earlier start may have been killed between creating and syncing one, and a later power
    loss would lose the whole data directory with that name.
    """
    for parent in path.parents:
        with suppress(PermissionError):  # Another user's directory, whose entries this process did not create
            fs.sync_dir(parent)


def _lock_dir(fs: FileSystem, path: Path) -> File:
    names = fs.list_dir(path)
    if _NODE_JSON not in names:
        foreign = [name for name in names if name not in _OURS_WHILE_NEW]
        if foreign:
            raise NodeDirError(
                f"{path} is not a Tidelog data directory and not empty (it has {foreign[0]!r}); "
                "give an empty directory, or the node's existing data directory"
            )
    try:
        return fs.lock(path / _LOCK, f"{os.getpid()}\n".encode())
    except BlockingIOError as error:
        with closing(fs.open_readonly(path / _LOCK)) as file:
            holder = file.pread(32, 0).decode("ascii", "replace").strip() or "unknown"
        raise NodeDirLockedError(
            f"{path} is in use by process {holder}; stop that process, or use another data directory"
        ) from error


@dataclass(frozen=True, slots=True)
class _ExpectedIds:
    """The node and cluster ids that the caller expects."""

    node_id: str | None
    cluster_id: bytes | None
    replaces: bool

    def new_record(self, boot_id: str) -> NodeRecord:
        """Return the first record of a new directory."""
        made_up = f"node-{secrets.token_hex(4)}"
        return NodeRecord(
            format_version=FORMAT_VERSION,
            node_id=made_up if self.node_id is None or self.replaces else self.node_id,
            cluster_id=(self.cluster_id or secrets.token_bytes(CLUSTER_ID_BYTES)).hex(),
            boot_counter=1,
            boot_id=boot_id,
            stopped_cleanly=False,
            admitted=self.cluster_id is None,
            unnoted_reboot=False,
            directory_id=secrets.token_hex(DIRECTORY_ID_BYTES),
        )

    def check(self, path: Path, old: NodeRecord) -> None:
        """Refuse an existing directory of another node or cluster."""
        if self.cluster_id is not None and old.cluster_id != self.cluster_id.hex():
            raise NodeDirError(
                f"{path} belongs to the cluster {old.cluster_id}, not to {self.cluster_id.hex()}; give a directory of "
                f"cluster {self.cluster_id.hex()}, or the bootstrap file or seeds of cluster {old.cluster_id}"
            )
        if self.replaces:
            if old.node_id == self.node_id:
                raise NodeDirError(
                    f"{path} is the directory of the node {old.node_id!r} itself: start it without --replace, "
                    "or give its replacement an empty directory"
                )
        elif self.node_id is not None and old.node_id != self.node_id:
            raise NodeDirError(
                f"{path} belongs to the node {old.node_id!r}, not to {self.node_id!r}; give the directory of "
                f"{self.node_id!r}"
            )


def _begin(fs: FileSystem, path: Path, lock: File, expected: _ExpectedIds) -> NodeDir:
    boot_id = BOOT_ID.read_text("ascii").strip()
    old = _read_record(fs, path) if fs.exists(path / _NODE_JSON) else None
    if old is None:
        _make_parts(fs, path)
        record = expected.new_record(boot_id)
    else:
        expected.check(path, old)
        if old.refused:
            raise OldCopyError(f"{path}: {old.refused}")
        missing = [name for name in (_META, _PARTITIONS) if not fs.exists(path / name)]
        if missing:
            raise NodeDirError(
                f"{path / missing[0]}, which was created with the data directory, is missing: put it back, or "
                f"{JOURNAL_REMEDY}"
            )
        if old.format_version < _FIRST_WITH_INCARNATIONS:
            _make_incarnation_journal(fs, path)
        # `unnoted_reboot` stays set if a start ends before every log has recorded the crash.
        rebooted = old.unnoted_reboot or (old.boot_id != boot_id and not old.stopped_cleanly)
        record = replace(
            old,
            format_version=FORMAT_VERSION,
            boot_counter=old.boot_counter + 1,
            boot_id=boot_id,
            stopped_cleanly=False,
            unnoted_reboot=rebooted,
        )
    _write_record(fs, path, record)
    nonce = secrets.randbits(NONCE_BITS)
    return NodeDir(fs, path, lock, record, nonce=nonce, machine_rebooted=record.unnoted_reboot)


def _make_parts(fs: FileSystem, path: Path) -> None:
    """Create the directories and empty journals, durably, before node.json exists.

    Raises:
        NodeDirError: the directory has data, so node.json was lost.
    """
    meta, partitions = path / _META, path / _PARTITIONS
    for directory in (meta, partitions):
        if not fs.exists(directory):
            fs.make_dir(directory)
    fs.sync_dir(path)
    made = {name + suffix for name in (_JOURNAL, _FENCES, _INCARNATIONS) for suffix in ("", NEW_SUFFIX)}
    data = [partitions / name for name in fs.list_dir(partitions)]
    data += [meta / name for name in fs.list_dir(meta) if name not in made]
    if data:
        raise NodeDirError(_lost_record(path, f"it has {data[0].relative_to(path)}"))
    try:
        TypedJournal.make(fs, meta / _JOURNAL, CHAINS)
        TypedJournal.make(fs, meta / _FENCES, FENCES)
        TypedJournal.make(fs, meta / _INCARNATIONS, INCARNATIONS)
    except DamagedError as error:
        raise NodeDirError(_lost_record(path, error.message)) from error
    except StorageError as error:
        raise NodeDirError(error.message) from error


def _make_incarnation_journal(fs: FileSystem, path: Path) -> None:
    """Create the journal of incarnations in a directory of an earlier version."""
    try:
        TypedJournal.make(fs, path / _META / _INCARNATIONS, INCARNATIONS)
    except StorageError as error:
        raise NodeDirError(error.message) from error


def _lost_record(path: Path, why: str) -> str:
    return f"{path} has data but no {_NODE_JSON} ({why}): {JOURNAL_REMEDY}"


def _read_record(fs: FileSystem, path: Path) -> NodeRecord:
    file_path = path / _NODE_JSON
    with closing(fs.open_readonly(file_path)) as file:
        data = file.pread(min(file.size(), _NODE_JSON_BYTES_MAX), 0)
    try:
        fields: Any = json.loads(data)
        version = fields["format_version"]
        if version not in _VERSIONS_READ:
            age = "newer" if isinstance(version, int) and version > FORMAT_VERSION else "older"
            raise NodeDirError(
                f"{path} has format version {version}; this build reads {_VERSIONS_READ[0]} to {FORMAT_VERSION}; use "
                f"the {age} build that wrote it"
            )
        is_first = version == 1
        record = NodeRecord(
            int(version),
            str(fields["node_id"]),
            str(fields["cluster_id"]),
            int(fields["boot_counter"]),
            str(fields["boot_id"]),
            stopped_cleanly=bool(fields["stopped_cleanly"]),
            # The field is missing in directories of builds without clusters, whose nodes were all single.
            admitted=bool(fields.get("admitted", True)),
            unnoted_reboot=bool(fields.get("unnoted_reboot", False)),
            directory_id=secrets.token_hex(DIRECTORY_ID_BYTES) if is_first else str(fields["directory_id"]),
            bound={} if is_first else {str(name): str(told) for name, told in fields["bound"].items()},
            refused=str(fields.get("refused", "")),
        )
        ids = [record.directory_id, *record.bound.values()]
        sound = (
            len(bytes.fromhex(record.cluster_id)) == CLUSTER_ID_BYTES
            and all(len(bytes.fromhex(one)) == DIRECTORY_ID_BYTES for one in ids)
            and record.node_id != ""
            and 0 < record.boot_counter < BOOT_COUNTER_MAX
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NodeDirError(f"{file_path} is damaged: {error!r}; {JOURNAL_REMEDY}") from error
    if not sound:
        raise NodeDirError(
            f"{file_path} is damaged: it must have a cluster_id of {CLUSTER_ID_BYTES} bytes, directory ids of "
            f"{DIRECTORY_ID_BYTES} bytes, a node_id and a boot_counter from 1 to {BOOT_COUNTER_MAX - 1}; "
            f"{JOURNAL_REMEDY}"
        )
    return record


def _write_record(fs: FileSystem, path: Path, record: NodeRecord) -> None:
    """Replace node.json durably."""
    unnamed = path / (_NODE_JSON + NEW_SUFFIX)
    if fs.exists(unnamed):
        fs.unlink(unnamed)
    with closing(fs.open(unnamed, create=True)) as file:
        file.pwritev([json.dumps(asdict(record), indent=2).encode() + b"\n"], 0)
        file.datasync()
    fs.rename(unnamed, path / _NODE_JSON)
    fs.sync_dir(path)
