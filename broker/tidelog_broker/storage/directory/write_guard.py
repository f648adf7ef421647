"""The state of a store that its failures and its repair marker decide; shared by the engines of epochs."""

from __future__ import annotations

from pathlib import Path

from tidelog_broker.storage.directory.repair_markers import remove_marker, write_marker
from tidelog_broker.storage.engine.store import Damage, State
from tidelog_broker.storage.io.errors import LimboError, StorageFailedError, is_shortage, space_or_failure
from tidelog_broker.storage.io.filesystem import FileSystem


class WriteGuard:
    """Refuses writes to a store after its first failure, while it is in LIMBO, and when it is sealed.

    Attributes:
        failure: why the store takes no more writes; "" while it takes them.
    """

    __slots__ = ("_directory", "_fs", "failure")

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self.failure = ""

    def state(self, damage: Damage | None, *, is_sealed: bool) -> State:
        """Return the state of the store, see `EpochStore.state`."""
        if self.failure:
            return "failed"
        if damage is not None:
            return "limbo"
        return "sealed" if is_sealed else "active"

    def give_up(self, reason: str) -> None:
        """Refuse all writes from now on; the first reason counts."""
        self.failure = self.failure or reason

    def failed(self, what: str, error: OSError) -> StorageFailedError:
        """Refuse all writes from now on; return the error to raise."""
        message = f"{what} failed: {error}; check the disk and restart the node"
        self.give_up(message)
        return StorageFailedError(f"{self._directory}: {message}")

    def check_open(self) -> None:
        """Check that the store takes writes of any kind.

        Raises:
            StorageFailedError: the store has failed or was closed.
        """
        if self.failure:
            raise StorageFailedError(f"{self._directory} takes no more writes: {self.failure}")

    def check_sound(self, damage: Damage | None, *, is_repairing: bool) -> None:
        """Check that damage does not keep the store from appends.

        Raises:
            LimboError: the store is in LIMBO and not being repaired.
            StorageFailedError: as `check_open`.
        """
        self.check_open()
        if damage is not None and not is_repairing:
            raise LimboError(
                f"{self._directory} takes no appends until it has the records of another replica: {damage.reason}"
            )

    def sealed(self, end_offset: int) -> StorageFailedError:
        """Return the error of an append to a store whose epoch has ended."""
        return StorageFailedError(f"{self._directory} takes no appends: it is sealed at offset {end_offset}")

    def begin_repair(self) -> None:
        """Create the repair marker of a store that is about to be truncated at its damage, durably.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        try:
            write_marker(self._fs, self._directory)
        except OSError as error:
            if is_shortage(error):
                raise space_or_failure(f"{self._directory} cannot be truncated at its damage", error) from error
            raise self.failed("writing the repair marker", error) from error

    def end_repair(self) -> None:
        """Remove the repair marker, durably, if it exists.

        Raises:
            StorageFailedError: the disk failed.
        """
        try:
            remove_marker(self._fs, self._directory)
        except OSError as error:
            raise self.failed("removing the repair marker", error) from error
