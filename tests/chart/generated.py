"""What is written from the settings and the chart, and committed: each file with its text."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from chart import reference
from chart.rendering import CHART, REPOSITORY, render
from chart.theirs import refused
from chart.valuesschema import values_schema
from holdfast.settings import Settings, plain

_MANIFEST = REPOSITORY / "deploy/manifests/holdfast.yaml"
_HELMS = ("helm.sh/chart:", "app.kubernetes.io/managed-by:")
"""Labels that would tell people to look for a release of Helm's."""
_HOOK = "helm.sh/hook:"
_HEADER = """\
# holdfast without Helm: what the chart in deploy/helm/holdfast makes of its defaults, in the namespace kube-system.
# Written by `make chart`. Name an image that your nodes can pull, then: kubectl apply -f holdfast.yaml
# The daemon takes up a change of the ConfigMap by itself, once kubelet has renewed the file: within some two minutes.
# Mounts and capabilities fit this configuration; deploy/README.md says which others need more.
"""


def inputs() -> Mapping[Path, str]:
    """Return what the chart is rendered with, and the page about the settings."""
    return {
        CHART / "files/settings.json": json.dumps(plain(Settings()), indent=2) + "\n",
        CHART / "files/refused.json": json.dumps(refused(), indent=2) + "\n",
        CHART / "values.schema.json": json.dumps(values_schema(), indent=2) + "\n",
        REPOSITORY / "docs/configuration.md": reference.page(),
        **{
            CHART / "files" / kind / each.name: each.read_text("utf-8")
            for kind, pattern in (("alerts", "*.yaml"), ("dashboards", "*.json"))
            for each in (REPOSITORY / "deploy" / kind).glob(pattern)
        },
    }


def outputs() -> Mapping[Path, str]:
    """Return the files that are rendered with the chart."""
    return {_MANIFEST: _HEADER + "".join(_manifest(render(helm=False)))}


def _manifest(text: str) -> Iterator[str]:
    for each in text.split("---\n")[1:]:
        if _HOOK not in each:  # those are for `helm test`
            lines = (line for line in each.splitlines(keepends=True) if not _is_helms(line))
            yield "".join(("---\n", *lines))


def _is_helms(line: str) -> bool:
    return line.strip().startswith(("# Source:", *_HELMS))
