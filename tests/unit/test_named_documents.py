"""Which named document counts, and what a document may say."""

from collections.abc import Collection
from pathlib import Path

import pytest
import yaml

from holdfast.errors import SettingsError
from holdfast.names import CONFIG_LABEL
from holdfast.settings import Settings, load
from holdfast.settings.cluster import Named
from holdfast.settings.named import choice, label_in, remember_label, remembered_label

_OURS, _THEIRS = "holdfast.dev/config", "nvidia.com/device-plugin.config"


@pytest.mark.parametrize(
    ("named", "label", "names", "wanted"),
    [
        (Named(), "b", ("a", "b", "default"), "b"),
        (Named(default="a"), "b", ("a", "b"), "b"),
        (Named(default="a"), "", ("a", "b", "default"), "a"),
        (Named(), "", ("a", "default"), "default"),
        (Named(), "", ("only",), "only"),
        (Named(fallback_strategies=("single", "named")), "", ("default",), "default"),
        (Named(fallback_strategies=("single", "empty")), "", ("a", "default"), ""),
        (Named(fallback_strategies=("empty", "named")), "", ("a", "default"), ""),
        (Named(fallback_strategies=("empty",)), "a", ("a", "b"), "a"),
    ],
)
def test_the_label_counts_then_the_default_then_the_first_strategy_that_finds_one(
    named: Named, label: str, names: Collection[str], wanted: str
) -> None:
    assert choice(named, label, names) == wanted


@pytest.mark.parametrize(
    ("named", "label", "names", "told"),
    [
        (Named(), "c", ("a", "default"), "'c', which the node's label names: .* a, default"),
        (Named(default="c"), "", ("a",), "'c', which named.default names"),
        (Named(), "", ("a", "b"), "none of the labels holdfast.dev/config, nvidia.com/.* set one"),
        (Named(fallback_strategies=()), "", ("default",), "cannot choose one"),
        (Named(), "", (), "cannot choose one of the documents in .*none"),
    ],
)
def test_where_no_document_can_be_meant_that_is_told(
    named: Named, label: str, names: Collection[str], told: str
) -> None:
    with pytest.raises(SettingsError, match=told):
        choice(named, label, names)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({_OURS: "a", _THEIRS: "b"}, "a"),
        ({_OURS: "", _THEIRS: "b"}, "b"),
        ({"kubernetes.io/os": "linux"}, ""),
    ],
)
def test_the_first_label_that_has_a_value_counts(labels: dict[str, str], wanted: str) -> None:
    assert label_in(Named(), labels) == wanted


class _Node:
    """A file, a folder of documents as a ConfigMap is mounted, and a state folder."""

    def __init__(self, folder: Path) -> None:
        self.state, self.named, self.file = folder / "state", folder / "named", folder / "file"
        (self.named / "..data").mkdir(parents=True)
        self.asked: list[str] = []

    def put(self, name: str, **content: object) -> None:
        (self.named / "..data" / name).write_text(yaml.safe_dump(content))
        (self.named / name).symlink_to(f"..data/{name}")

    def load(self, environ: dict[str, str] | None = None, **file: object) -> Settings:
        named = {"folder": str(self.named)}
        self.file.write_text(yaml.safe_dump({"stateDir": str(self.state), "named": named, **file}))
        return load(self.file, environ or {}, ask_label=lambda _: self.asked.append("label"))


@pytest.fixture
def node(tmp_path: Path) -> _Node:
    return _Node(tmp_path)


def test_a_document_wins_over_the_file_and_the_environment_over_both(node: _Node) -> None:
    node.put("default", gate={"wait": "2s", "poll": "1s"})

    found = node.load({"HOLDFAST_GATE_POLL": "3s"}, gate={"wait": "1s"}, reclaim={"poll": "7s"})

    assert [float(each) for each in (found.gate.wait, found.gate.poll, found.reclaim.poll)] == [
        2,
        3,
        7,
    ]


def test_the_documents_of_nvidias_plugin_are_understood(node: _Node) -> None:
    node.put("plain", version="v1", flags={"migStrategy": "none"})
    node.put(
        "mixed", version="v1", flags={"migStrategy": "mixed", "plugin": {"passDeviceSpecs": True}}
    )
    remember_label(str(node.state), "mixed")

    found = node.load(gpu={"migStrategy": "single"})

    assert found.gpu.mig_strategy == "mixed"
    assert found.gpu.pass_device_specs


def test_the_label_is_asked_for_once_and_remembered(node: _Node) -> None:
    node.put("default")
    node.put("other", gate={"wait": "3s"})
    node.load()
    assert node.asked == ["label"]
    assert remembered_label(str(node.state)) is None

    remember_label(str(node.state), "other")
    assert node.state.stat().st_mode & 0o777 == 0o700, "it is the ledger's folder, too"
    assert float(node.load().gate.wait) == 3
    remember_label(str(node.state), "")
    node.load()
    assert node.asked == ["label"]


def test_a_label_that_a_power_cut_left_empty_counts_as_never_read(node: _Node) -> None:
    node.put("default")
    node.state.mkdir()
    (node.state / CONFIG_LABEL).touch()

    node.load()

    assert node.asked == ["label"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            {"gate": {"wiat": "1s"}},
            r"gate.wiat: there is no such key.*\(with the document .*/one\)",
        ),
        ({"named": {"default": "x"}}, "named is the same for every document"),
        ({"stateDir": "/x"}, "stateDir is the same for every document"),
        ({"version": "v2"}, "'v2' is not supported"),
        ({"tpu": {"enabled": False}, "gpu": {"enabled": False}}, "nothing is left to advertise"),
    ],
)
def test_a_document_that_cannot_be_used_is_told_by_its_name(
    node: _Node, content: dict[str, object], told: str
) -> None:
    node.put("one", **content)
    with pytest.raises(SettingsError, match=told):
        node.load()


def test_a_folder_that_is_not_there_is_told(node: _Node, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the documents in"):
        load(None, {"HOLDFAST_NAMED_FOLDER": str(tmp_path / "none")})
