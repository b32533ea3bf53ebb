"""Checks node labels: the folder of node-feature-discovery, who writes there, and who reads."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.doctor.finding import Check, Finding, Node, unusable
from holdfast.host.files.kernelfile import is_folder, list_names, text_or_empty
from holdfast.host.files.specfolder import FeatureFile
from holdfast.host.proc.procfs import Procfs
from holdfast.model.text import some

_WORKER = "nfd-worker"
_GKES_FOLDER = "/home/kubernetes/bin"
"""Where GKE's nodes have kubelet."""


def labels_findings(node: Node) -> Iterator[Finding]:
    """Yield what was found of node labels."""
    labels = node.settings.labels
    if not labels.enabled:
        yield Check("wanted").ok("no node labels are written (labels.enabled is false)")
        return
    yield Check("wanted").ok(f"node labels are written to {labels.folder}")
    folder = node.path(labels.folder)
    yield _folder(node, folder)
    yield from _rivals(folder)
    if node.live:
        yield _reader(node)
    if labels.gke_keys and is_folder(node.path(_GKES_FOLDER)):
        yield Check("gke-keys").fail(
            f"labels.gkeKeys is true on a node of GKE (it has {_GKES_FOLDER}): node-feature-"
            "discovery would overwrite and remove GKE's own labels",
            remedy="set labels.gkeKeys: false",
        )


def _folder(node: Node, folder: Path) -> Finding:
    missing = Check("folder").fail(
        f"{folder} is not there, and holdfast does not make it: it writes no labels",
        remedy="install node-feature-discovery; if the daemon runs in a container, mount the "
        "node's folder there; or set labels.folder",
    )
    if problem := unusable(node, folder, missing):
        return problem
    ours = FeatureFile(folder)
    if not ours.exists:
        return Check("folder").ok(f"{folder} is there, without a file of holdfast's yet")
    return Check("folder").ok(f"{ours.path} has {len(_keys(ours.path))} labels")


def _rivals(folder: Path) -> Iterator[Finding]:
    ours = FeatureFile(folder).path
    keys = _keys(ours)
    for name in list_names(folder):
        both = sorted(keys & _keys(folder / name))
        if both and name != ours.name and not name.startswith("."):
            yield Check("rivals").warn(
                f"{folder / name} has labels that holdfast writes too ({some(both)}): "
                "node-feature-discovery takes one of the two values",
                remedy="run one of them: set labels.enabled: false, or turn the other off, such as "
                "GPU feature discovery by gfd.enabled=false, and remove its file",
            )


def _reader(node: Node) -> Finding:
    procfs = Procfs(node.host)
    found = map(procfs.process, procfs.pids())
    if any(each is not None and each.comm == _WORKER for each in found):
        return Check("reader").ok(f"{_WORKER} runs on this node")
    return Check("reader").warn(
        f"no {_WORKER} runs on this node: nobody reads the file",
        remedy="install node-feature-discovery (0.15 or later), and see that its worker runs here",
    )


def _keys(path: Path) -> frozenset[str]:
    lines = text_or_empty(path).splitlines()
    return frozenset(line.partition("=")[0] for line in lines if line and line[0] != "#")
