"""What container runtimes keep in /run: containerd's bundles and runsc's states."""

import json
from pathlib import Path
from typing import Any

_CRI = "io.kubernetes.cri."
RUNSC = "containerd/runsc/k8s.io"


class RuntimeFolder:
    """The /run of a node. Each file is written as its runtime does."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def bundle(self, name: str, spec: Any, *, place: str = "containerd") -> Path:
        """Write what containerd makes for the task of one container; text goes in as it is."""
        home = self.run / place / "io.containerd.runtime.v2.task/k8s.io" / name
        home.mkdir(parents=True, exist_ok=True)
        file = home / "config.json"
        file.write_text(spec if isinstance(spec, str) else json.dumps(spec))
        return file

    def saved(
        self, name: str, sandbox: str, status: int | str, spec: Any, *, place: str = RUNSC
    ) -> Path:
        """Write what runsc keeps of one container."""
        folder = self.run / place
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}_sandbox:{sandbox}.lock").touch()
        file = folder / f"{name}_sandbox:{sandbox}.state"
        content = {
            "id": name,
            "spec": spec,
            "status": status,
            "goferPid": 12,
            "sandbox": {"id": sandbox, "pid": 13},
        }
        file.write_text(json.dumps(content))
        return file


def spec(kind: str, sandbox: str, *, uid: str = "", cgroup: str = "") -> dict[str, Any]:
    """Return how a container of kubelet's is specified; *kind* is sandbox or container."""
    notes = {f"{_CRI}container-type": kind, f"{_CRI}sandbox-id": sandbox}
    if uid:
        notes[f"{_CRI}sandbox-uid"] = uid
    return {"ociVersion": "1.1.0", "annotations": notes, "linux": {"cgroupsPath": cgroup}}
