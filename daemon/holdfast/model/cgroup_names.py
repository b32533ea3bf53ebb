"""Reads pods and containers out of cgroup paths, in every form kubelet and runtimes write."""

import re

from holdfast.model.ids import PodUid

_POD = re.compile(r"(?:^|-)pod(?P<uid>[0-9a-fA-F][0-9a-fA-F_-]{7,62})(?:\.slice)?$")
_CONTAINER = re.compile(r"^(?:[a-z0-9.]+-)?(?P<id>[0-9a-f]{64})(?:\.scope)?$")


def pod_of(cgroup: str) -> tuple[PodUid | None, str | None]:
    """Return the pod's UID and the container's id that *cgroup* (a path) names, None for neither.

    Known forms: ``kubepods/besteffort/pod<uid>/<id>``, the same without a QoS folder, systemd's
    ``kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope``, either one nested in
    kind's own folders; static pods' UIDs have 32 digits and no dashes. ``/k8s.io/<id>`` names a
    container and no pod.
    """
    pod: PodUid | None = None
    container: str | None = None
    below_kubepods = False
    for part in cgroup.split("/"):
        if "kubepods" in part:
            below_kubepods = True
        match = _POD.search(part) if below_kubepods else None
        if match is not None:
            pod = PodUid(match["uid"].replace("_", "-"))
            container = None
            continue
        match = _CONTAINER.match(part)
        if match is not None:
            container = match["id"]
    return pod, container


def folder_names(pod: PodUid) -> tuple[str, ...]:
    """Return every name that the folder of *pod* may have."""
    underscored = pod.replace("-", "_")
    qos = ("", "-burstable", "-besteffort")
    slices = tuple(f"kubepods{each}-pod{underscored}.slice" for each in qos)
    return (f"pod{pod}", *slices, *(f"kubelet-{each}" for each in slices))
