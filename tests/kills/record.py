"""Kubelet's record of claims: what it knows in memory, and what dra_manager_state has of it."""

from pathlib import Path

from msgspec.structs import replace

from fakes.claimrecord import write_entries
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid
from holdfast.model.kubelet import ClaimEntry, RecordedDevice


class Record:
    """Kubelet writes the whole file after each change, and reads it at its start alone."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.version = 0
        """Grows with everything that happens to the file."""
        self._entries: dict[ClaimUid, ClaimEntry] = {}
        self._intact = True
        self.write()

    def has(self, claim: ClaimUid) -> bool:
        return claim in self._entries

    def keeps(self, claim: ClaimUid) -> bool:
        """Tell whether the file can be read and says that *claim* is prepared."""
        return self._intact and self.has(claim) and bool(self._entries[claim].devices)

    def users(self, claim: ClaimUid) -> frozenset[PodUid]:
        """Return the pods that use *claim*."""
        return self._entries[claim].pods

    def use(self, claim: ClaimRef, pod: PodUid) -> None:
        """Write that *pod* is to use *claim*, before the driver is called."""
        entry = self._entries.get(claim.uid, ClaimEntry(claim=claim, pods=frozenset()))
        self._put(replace(entry, pods=entry.pods | {pod}))

    def answered(self, claim: ClaimUid, driver: str, devices: tuple[RecordedDevice, ...]) -> None:
        """Write what the driver has prepared."""
        self._put(replace(self._entries[claim], devices={driver: devices}))

    def leave(self, claim: ClaimUid, pod: PodUid) -> None:
        """Write that *pod* is over, while others use *claim*."""
        entry = self._entries.get(claim)
        if entry is not None and pod in entry.pods:
            self._put(replace(entry, pods=entry.pods - {pod}))

    def drop(self, claim: ClaimUid) -> None:
        """Write that *claim* is unprepared."""
        if self._entries.pop(claim, None) is not None:
            self.write()

    def start(self) -> None:
        """Do as a kubelet that starts: what it cannot read is moved away for it, and is lost."""
        if not self._intact:
            self._entries.clear()
        self.write()

    def suffer(self, *, lost: bool) -> None:
        """Let the file be lost, or damaged, until kubelet writes it again."""
        self._intact = False
        self.version += 1
        if lost:
            self.file.unlink(missing_ok=True)
        else:
            self.file.write_text("{")

    def _put(self, entry: ClaimEntry) -> None:
        if self._entries.get(entry.claim.uid) != entry:
            self._entries[entry.claim.uid] = entry
            self.write()

    def write(self) -> None:
        """Write what kubelet knows."""
        self._intact = True
        self.version += 1
        write_entries(self.file, self._entries.values())
