"""Each configuration that NVIDIA documents works here as it stands, or is refused by name.

The files have the keys and values of its plugin's README and of GPU Operator's page on time slicing.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.settingsfiles import load
from holdfast.errors import SettingsError
from holdfast.model.cards import Sharing
from holdfast.model.ids import ResourceName
from holdfast.settings import Settings

_GPU = ResourceName("nvidia.com/gpu")
_FLAGS = """\
version: v1
flags:
  migStrategy: {mig}
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: {strategy}
    deviceIDStrategy: uuid
"""
_SHARED = """\
version: v1
flags:
  migStrategy: none
sharing:
  timeSlicing:
    renameByDefault: {renamed}
    failRequestsGreaterThanOne: {single}
    resources:
    - name: nvidia.com/gpu
      replicas: 10
"""
_PLAIN = _SHARED.format(renamed="false", single="false")
_SLICED = """\
version: v1
flags:
  migStrategy: mixed
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 8}
    - {name: nvidia.com/mig-1g.5gb, replicas: 2}
    - {name: nvidia.com/mig-2g.10gb, replicas: 2}
    - {name: nvidia.com/mig-3g.20gb, replicas: 3}
    - {name: nvidia.com/mig-7g.40gb, replicas: 7}
"""
_MPS = "version: v1\nsharing:\n  mps:\n    resources: [{name: nvidia.com/gpu, replicas: 10}]"
_LABELS = """\
version: v1
flags:
  migStrategy: single
  gfd:
    oneshot: false
    noTimestamp: false
    sleepInterval: 60s
    outputFile: /etc/kubernetes/node-feature-discovery/features.d/gfd
    machineTypeFile: /sys/class/dmi/id/product_name
"""
_PATTERNS = """\
version: v1
resources:
  gpus: [{pattern: "*", name: gpu}]
  mig: [{pattern: 1g.5gb, name: mig-small}]
"""


def _shared(**how: bool) -> Callable[[Settings], bool]:
    rule = Sharing(replicas=10, **how)
    return lambda settings: settings.sharing.by_resource() == {_GPU: rule}


_TAKEN: dict[str, tuple[str, Callable[[Settings], bool]]] = {
    "one file": (
        _FLAGS.format(mig='"none"', strategy="envvar"),
        lambda settings: settings.gpu.driver_root_on_host == "/",
    ),
    "the second of two files": (
        _FLAGS.format(mig='"mixed"', strategy="envvar"),
        lambda settings: settings.gpu.mig_strategy == "mixed",
    ),
    "a list of strategies": (
        _FLAGS.format(mig="none", strategy="[envvar, cdi-cri]"),
        lambda settings: settings.gpu.device_list_strategy == ("envvar", "cdi-cri"),
    ),
    "strategies in one text": (
        _FLAGS.format(mig="none", strategy="envvar,cdi-annotations"),
        lambda settings: settings.gpu.device_list_strategy == ("envvar", "cdi-annotations"),
    ),
    "time slicing": (_PLAIN, _shared()),
    "time slicing, renamed": (
        _SHARED.format(renamed="true", single="false"),
        _shared(renamed=True),
    ),
    "time slicing, one each": (
        _SHARED.format(renamed="false", single="true"),
        _shared(single=True),
    ),
    "time slicing of all devices": (_PLAIN + "      devices: all\n", _shared()),
    "time slicing, renamed by itself": (
        _PLAIN + "      rename: nvidia.com/gpu.shared\n",
        _shared(),
    ),
    "time slicing, with a name of one's own": (
        _PLAIN + "      rename: nvidia.com/slow\n",
        _shared(),
    ),
    "time slicing of slices, too": (
        _SLICED,
        lambda settings: settings.sharing.by_resource()[_GPU] == Sharing(replicas=8),
    ),
    "an IMEX channel where there is one": (
        "version: v1\nimex: {channelIDs: [0], required: false}",
        lambda settings: settings.gpu.imex_channel_ids == (0,) and not settings.gpu.imex_required,
    ),
    "an IMEX channel that is required": (
        "version: v1\nimex: {channelIDs: [0], required: true}",
        lambda settings: settings.gpu.imex_required,
    ),
    "no IMEX channel": (
        "version: v1\nimex: {channelIDs: [], required: true}",
        lambda settings: settings.gpu.imex_channel_ids == (),
    ),
    "GPU feature discovery": (_LABELS, lambda settings: settings.gpu.mig_strategy == "single"),
    "patterns": (
        _PATTERNS,
        lambda settings: "nvidia.com/mig-small" in {e.resource for e in settings.device_rules()},
    ),
    "an empty document": ("version: v1", lambda settings: settings == load(None, {})),
}


@pytest.mark.parametrize("example", _TAKEN)
def test_a_configuration_that_nvidia_documents_works_as_it_stands(
    tmp_path: Path, example: str
) -> None:
    text, holds = _TAKEN[example]
    assert holds(_loaded(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_MPS, r"sharing\.mps\.resources in .*share GPUs by sharing\.timeSlicing"),
        (_PLAIN + "      devices: 2\n", r"resources\[0\]\.devices in .*write all, or leave it"),
        (_PLAIN + "      devices: [0, 1]\n", r"resources\[0\]\.devices in .*leave it out"),
        ("version: v1\nimex: {channelIDs: [1]}", r"gpu\.imexChannelIds"),
        ("version: v1\nflags: {deviceDiscoveryStrategy: tegra}", "found by NVML alone"),
    ],
)
def test_a_configuration_that_nvidia_documents_and_is_not_taken_is_refused_by_name(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        _loaded(tmp_path, text)


def _loaded(folder: Path, text: str) -> Settings:
    file = folder / "theirs.yaml"
    file.write_text(text)
    return load(None, {"CONFIG_FILE": str(file)})
