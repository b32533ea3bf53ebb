"""What is written from the settings and the chart, and committed: each file with its text."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from chart.rendering import CHART, REPOSITORY, render
from holdfast.settings import Settings, plain

_MANIFEST = REPOSITORY / "deploy/manifests/holdfast.yaml"
_HELMS = ("helm.sh/chart:", "app.kubernetes.io/managed-by:")
"""Labels that would tell people to look for a release of Helm's."""
_HEADER = """\
# holdfast without Helm: what the chart in deploy/helm/holdfast makes of its defaults, in the namespace kube-system.
# kubectl apply -f holdfast.yaml, once the image is one that your nodes can pull. Written by `make chart`; do not edit.
"""


def inputs() -> Mapping[Path, str]:
    """Return the files that the chart is rendered with."""
    return {CHART / "files/settings.json": json.dumps(plain(Settings()), indent=2) + "\n"}


def outputs() -> Mapping[Path, str]:
    """Return the files that are rendered with the chart."""
    return {_MANIFEST: _HEADER + "".join(_manifest(render(helm=False)))}


def _manifest(text: str) -> Iterator[str]:
    for line in text.splitlines(keepends=True):
        if not line.strip().startswith(("# Source:", *_HELMS)):
            yield line
