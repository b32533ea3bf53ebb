"""The daemon's pod as the chart makes it, rendered here and read in the guest."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vm.modes import CHART, Mode, mode_of

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "deploy/helm/holdfast"
MANIFEST = REPOSITORY / "deploy/manifests/holdfast.yaml"


def write(names: Iterable[str], target: Path) -> None:
    """Write to *target*, by name, the pod of each of the modes *names* that is of the chart's way."""
    made = {name: pod_of(name) for name in sorted(set(names)) if name.startswith(CHART)}
    target.write_text(json.dumps(made))


def pod_of(name: str) -> dict[str, Any]:
    """Return the `pod` of the DaemonSet and the `files` of its ConfigMaps, for the mode *name*.

    What the mode lacks is taken out of the pod, which must have it.
    """
    import yaml  # noqa: PLC0415 - as in _rendered

    mode = mode_of(name)
    texts = [MANIFEST.read_text()] if mode.as_shipped else _rendered(mode)
    documents = [each for text in texts for each in yaml.safe_load_all(text) if each]
    (daemonset,) = [each for each in documents if each["kind"] == "DaemonSet"]
    pod = daemonset["spec"]["template"]["spec"]
    for lack in mode.lacks:
        take_away(pod, lack)
    files = {
        each["metadata"]["name"]: each["data"] for each in documents if each["kind"] == "ConfigMap"
    }
    return {"pod": pod, "files": files}


def _rendered(mode: Mode) -> list[str]:
    import helm_python  # noqa: PLC0415 - loads an engine, which cases of the other way do not need

    chart = helm_python.Chart.load(str(FOLDER))
    values = {**mode.values, "config": mode.settings}
    rendered = chart.render(values, name="holdfast", namespace="holdfast")
    return [text for path, text in rendered.items() if path.endswith(".yaml")]


def take_away(pod: dict[str, Any], lack: str) -> None:
    """Take a capability, hostPID, or the mounts whose names begin so, out of *pod*."""
    (container,) = pod["containers"]
    capabilities: Mapping[str, list[str]] = container["securityContext"].get("capabilities", {})
    mounts = container["volumeMounts"]
    named = [mount for mount in mounts if mount["name"].startswith(lack)]
    if lack == "hostPID" and pod.pop("hostPID", False):
        return
    if lack in capabilities.get("add", ()):
        capabilities["add"].remove(lack)
    elif named:
        container["volumeMounts"] = [mount for mount in mounts if mount not in named]
    else:
        raise AssertionError(f"the chart does not give {lack}")
