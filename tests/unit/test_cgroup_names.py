"""Kubelet's names of cgroups, as they have been seen, and back from any UID."""

import string
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.ids import PodUid
from holdfast.model.node.cgroup_names import is_root, pod_of, pod_paths

UID = "6f1e4a52-9d0c-4f7e-8a0f-1c2d3e4f5a6b"
SLICE_UID = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
ID = "ab" * 32
KIND = "/kubelet.slice/kubelet-kubepods.slice"


@pytest.mark.parametrize(
    ("path", "uid", "container"),
    [
        (f"/kubepods/besteffort/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}/{ID}", UID, ID),
        (f"/kubepods/pod{UID}", UID, None),
        (f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC, ID),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
        ),
        (f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope", UID, ID),
        (f"/kubepods.slice/kubepods-pod{SLICE_UID}.slice/crio-{ID}.scope/container", UID, ID),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{STATIC}.slice",
            STATIC,
            None,
        ),
        (
            f"{KIND}/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope",
            UID,
            ID,
        ),
        (f"/kubelet/kubepods/burstable/pod{UID}/{ID}", UID, ID),
        (f"/docker/{ID}/kubelet/kubepods/pod{UID}", UID, None),
        (f"/../../pod{UID}/{ID}", UID, ID),
        (f"/../../../burstable/pod{UID}/{ID}", UID, ID),
        (f"/../kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope", UID, ID),
        (f"/kubepods/pod{UID}/{ID}/kubelet/kubepods/pod{STATIC}/{ID}", UID, ID),
        (f"/kubepods/podmy-static-pod/{ID}", "my-static-pod", ID),
        (f"/k8s.io/{ID}", None, ID),
        (f"/system.slice/docker-{ID}.scope", None, ID),
        ("/system.slice/containerd.service", None, None),
        ("/user.slice/user-1000.slice/session-2.scope", None, None),
        ("/", None, None),
        ("", None, None),
        (f"/pod{UID}", None, None),
        (f"/machine.slice/pod{UID}/{ID}", None, ID),
        ("/kubepods/burstable", None, None),
        ("/kubepods.slice/kubepods-burstable.slice", None, None),
        (f"/../pod-of-mine/{ID}", None, ID),
        (f"/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope", None, ID),
    ],
)
def test_a_path_names_its_pod_and_container(
    path: str, uid: str | None, container: str | None
) -> None:
    assert pod_of(path) == (uid, container)


UIDS = st.one_of(
    st.uuids().map(str), st.text(alphabet="0123456789abcdef", min_size=32, max_size=32)
)


@given(
    uid=UIDS,
    root=st.sampled_from(["kubepods", "kubepods.slice", "kubelet-kubepods.slice"]),
    above=st.sampled_from(["", "/kubelet", "/kubelet.slice", f"/docker/{ID}"]),
    container=st.one_of(st.none(), st.just(ID)),
)
def test_every_place_where_a_pod_can_be_leads_back_to_it(
    uid: str, root: str, above: str, container: str | None
) -> None:
    for path in pod_paths(root, PodUid(uid)):
        below = (
            ""
            if container is None
            else f"/cri-containerd-{container}.scope"
            if ".slice" in root
            else f"/{container}"
        )
        assert pod_of(f"{above}/{path}{below}") == (uid, container)


@given(st.text(alphabet=string.printable))
def test_no_text_is_too_odd_to_be_looked_at(path: str) -> None:
    pod_of(path)


@given(parts=st.lists(st.text(alphabet="abcdefghij-_.", max_size=12)))
def test_a_path_without_kubelets_names_names_no_pod(parts: list[str]) -> None:
    uid, _ = pod_of("/" + "/".join(part for part in parts if part != ".."))
    assert uid is None


def test_pods_are_looked_for_once_for_each_class_of_service() -> None:
    for root in ("kubepods", "x-kubepods.slice"):
        assert len(set(pod_paths(root, PodUid(UID)))) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *product(["kubepods", "kubepods.slice", "kubelet-kubepods.slice"], [True]),
        *product(
            ["kubepods-burstable.slice", "kubelet.slice", "pod", "mykubepods", "kubepods.service"],
            [False],
        ),
    ],
)
def test_the_cgroup_above_all_pods_is_known_by_name(name: str, expected: bool) -> None:
    assert is_root(name) is expected
