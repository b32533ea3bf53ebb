"""What the book has of pods: their cgroups, their names, and whether kubelet let go of them."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.book.book import PodRecord
from holdfast.model.book.claims import pods_of_claims
from holdfast.model.book.draft import Draft
from holdfast.model.ids import BootId, DeviceName, PodUid
from holdfast.model.kubelet import KubeletView


class PodSighting(Struct, frozen=True, kw_only=True):
    """A pod's cgroup as just seen; `processes` are the live pids in it and below.

    `unlisted` says what could not be read, so that there may be others; empty: nothing.
    """

    cgroup: str
    inode: int
    processes: tuple[int, ...] = ()
    unlisted: str = ""


def note_pods(
    draft: Draft, view: KubeletView, sightings: Mapping[PodUid, PodSighting], boot: BootId
) -> None:
    """Write down what *view* and *sightings* show of the pods in the book; forget all others."""
    book = draft.book
    needed = {each.pod for each in book.allocations.values()}
    needed |= {lock.pod for lock in book.locks.values()}
    needed |= pods_of_claims(book, over=True)
    claimed = pods_of_claims(book, over=False)
    for record in book.pods.values():
        if record.uid not in needed:
            draft.forget_pod(record.uid)
            continue
        has_live = record.uid in claimed or bool(book.holdings.of_pod(record.uid))
        seen = _with_sighting(record, sightings.get(record.uid), boot, has_live=has_live)
        noted = _with_name(seen, view)
        draft.note_pod(_with_count(noted, view, boot, has_claim=record.uid in claimed))


def _with_sighting(
    record: PodRecord, sighting: PodSighting | None, boot: BootId, *, has_live: bool
) -> PodRecord:
    """Return the record with the pod's present cgroup.

    Once its Allocations have ended, the recorded cgroup stays: one with the same UID and another
    inode belongs to a later pod, and the remaining locks do not concern its processes.
    """
    if sighting is None or not (has_live or record.inode is None):
        return record
    return replace(record, cgroup=sighting.cgroup, inode=sighting.inode, boot=boot)


def _with_name(record: PodRecord, view: KubeletView) -> PodRecord:
    """Return the record with the pod's name, if its devices identify it.

    PodResources names pods and no UIDs, the checkpoint UIDs and no names; List leaves out what
    plain init containers have.
    """
    if record.name or not view.answered:
        return record
    devices = {
        DeviceName(entry.resource, id_)
        for entry in view.entries_of_pod(record.uid)
        for id_ in entry.devices
    }
    fitting = view.listed_within(devices)
    if len(fitting) != 1:
        return record
    return replace(record, namespace=fitting[0].namespace, name=fitting[0].name)


def _with_count(
    record: PodRecord, view: KubeletView, boot: BootId, *, has_claim: bool
) -> PodRecord:
    """Return the record with the evidence that kubelet dropped the pod, or that it did not.

    A pod with a claim that kubelet has not unprepared is counted, whatever the checkpoint says.

    Only a complete question proves that, and only if the kubelet that answers now is the one that
    had the pod in a checkpoint that it wrote itself. Evidence from another boot does not count.
    """
    if record.counted_boot not in {None, boot}:
        record = replace(record, counted_by=None, let_go_at=None, counted_boot=None)
    asked = view.answered and view.kubelet is not None
    if has_claim:
        record = replace(record, let_go_at=None)
    if not view.readable:
        return record
    if has_claim or view.counts(record.uid):  # seen at any time, it starts the evidence over
        if asked:
            record = replace(record, counted_by=view.kubelet, counted_boot=boot)
        return replace(record, let_go_at=None)
    if not asked:
        return record
    if record.counted_by != view.kubelet:
        return replace(record, let_go_at=None)
    if record.let_go_at is None:
        return replace(record, let_go_at=view.asked_at)
    return record
