"""Renders the chart with the `helm` binary where there is one, else with Helm's engine as a library."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from holdfast.settings import Settings, convert
from holdfast.settings.yamltext import mapping

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "deploy/helm/holdfast"
NAMESPACE = "kube-system"

_LAST = ("DaemonSet", "Pod")

Object = dict[str, Any]
Values = Mapping[str, Any]


class RefusedError(Exception):
    """Helm refused the values, or failed to render the chart; its words."""


def render(values: Values | None = None, *, name: str = "holdfast", helm: bool = True) -> str:
    """Return the text of all objects, each after a line of dashes; *helm*: by the binary, if any."""
    binary = shutil.which("helm") if helm else None
    if binary is None:
        return _by_library(json.dumps(values or {}), name)
    ended = subprocess.run(
        [binary, "template", name, CHART, "--namespace", NAMESPACE, "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RefusedError(ended.stderr)
    return ended.stdout


def objects(values: Values | None = None, *, name: str = "holdfast") -> list[Object]:
    """Return the objects that the chart makes of *values*."""
    text = render(values, name=name)
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def one(found: list[Object], kind: str) -> Object:
    """Return the only object of *kind*."""
    (only,) = [each for each in found if each["kind"] == kind]
    return only


def daemon_set(values: Values | None = None) -> Object:
    """Return the DaemonSet that the chart makes of *values*."""
    return one(objects(values), "DaemonSet")


def pod(values: Values | None = None) -> Object:
    """Return the specification of its pods."""
    return cast("Object", daemon_set(values)["spec"]["template"]["spec"])


def container(values: Values | None = None) -> Object:
    """Return the daemon's own container."""
    (only,) = pod(values)["containers"]
    return cast("Object", only)


def settings(found: list[Object]) -> Settings:
    """Return the settings as the daemon reads them from the ConfigMap."""
    text = one(found, "ConfigMap")["data"]["config.yaml"]
    return convert(mapping(text, "config.yaml"))


def engine() -> Any:
    """Return Helm's engine as a library; skip the test where there is none: not on x86-64."""
    return pytest.importorskip("helm_python", reason="Helm's engine is there on x86-64 alone")


@cache
def _by_library(text: str, name: str) -> str:
    helm_python, values = engine(), json.loads(text)
    with helm_python.Chart.load(CHART) as chart:
        try:
            chart.validate_schema(values)
            rendered = chart.render(values, name=name, namespace=NAMESPACE)
        except helm_python.HelmError as error:
            raise RefusedError(str(error)) from error
    texts = [text for path, text in rendered.items() if not path.endswith("NOTES.txt")]
    each = (part.strip() for text in texts for part in re.split(r"(?m)^---$", text))
    return "".join(f"---\n{text}\n" for text in sorted(filter(None, each), key=_place))


def _place(text: str) -> int:
    """Return where in the order of an installation an object stands: after what it refers to."""
    kind = next(line[6:] for line in text.splitlines() if line.startswith("kind: "))
    return _LAST.index(kind) + 1 if kind in _LAST else 0
