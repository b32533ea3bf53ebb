"""Which named document counts, and what a document may say."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import cast

import pytest
import yaml

from fakes.settingsfiles import load
from holdfast.errors import SettingsError
from holdfast.names import CONFIG_LABEL
from holdfast.settings import Settings, known_paths
from holdfast.settings.named import choice, label_in, remember, remembered_label
from holdfast.settings.reloading import TakeUp, take_up
from holdfast.settings.sections import NamedSettings
from holdfast.settings.sources import LoadedSettings, SettingsSources, for_start

_OURS, _THEIRS = "holdfast.dev/config", "nvidia.com/device-plugin.config"


@pytest.mark.parametrize(
    ("named", "label", "names", "wanted"),
    [
        (NamedSettings(), "b", ("a", "b", "default"), "b"),
        (NamedSettings(default="a"), "b", ("a", "b"), "b"),
        (NamedSettings(default="a"), "", ("a", "b", "default"), "a"),
        (NamedSettings(), "", ("a", "default"), "default"),
        (NamedSettings(), "", ("only",), "only"),
        (NamedSettings(fallback_strategies=("single", "named")), "", ("default",), "default"),
        (NamedSettings(fallback_strategies=("single", "empty")), "", ("a", "default"), ""),
        (NamedSettings(fallback_strategies=("empty", "named")), "", ("a", "default"), ""),
        (NamedSettings(fallback_strategies=("empty",)), "a", ("a", "b"), "a"),
    ],
)
def test_the_label_counts_then_the_default_then_the_first_strategy_that_finds_one(
    named: NamedSettings, label: str, names: Collection[str], wanted: str
) -> None:
    assert choice(named, label, names) == wanted


@pytest.mark.parametrize(
    ("named", "label", "names", "told"),
    [
        (
            NamedSettings(),
            "c",
            ("a", "default"),
            "'c', which the node's label names: .* a, default",
        ),
        (NamedSettings(default="c"), "", ("a",), "'c', which named.default names"),
        (
            NamedSettings(),
            "",
            ("a", "b"),
            "none of the labels holdfast.dev/config, nvidia.com/.* set one",
        ),
        (NamedSettings(fallback_strategies=()), "", ("default",), "cannot choose one"),
        (NamedSettings(), "", (), "cannot choose one of the documents in .*none"),
    ],
)
def test_where_no_document_can_be_meant_that_is_told(
    named: NamedSettings, label: str, names: Collection[str], told: str
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
    assert label_in(NamedSettings(), labels) == wanted


class _Node:
    """A file, a folder of documents as a ConfigMap is mounted, and a state folder."""

    def __init__(self, folder: Path) -> None:
        self.state, self.named, self.file = folder / "state", folder / "named", folder / "file"
        (self.named / "..data").mkdir(parents=True)
        self.asked: list[str] = []

    def put(self, name: str, **content: object) -> None:
        (self.named / "..data" / name).write_text(yaml.safe_dump(content))
        (self.named / name).symlink_to(f"..data/{name}")

    def start(
        self,
        environ: dict[str, str] | None = None,
        *,
        label: str | None = None,
        former: LoadedSettings | None = None,
        text: str = "",
        **file: object,
    ) -> LoadedSettings:
        """Return what a start goes by; *label* is what the API server says of the node."""
        named = {"folder": str(self.named), **cast("dict[str, object]", file.pop("named", {}))}
        given = {"stateDir": str(self.state), "named": named, **file}
        self.file.write_text(text or yaml.safe_dump(given))

        def ask(_settings: Settings) -> str | None:
            self.asked.append("label")
            return label

        return for_start(lambda: SettingsSources(self.file, environ or {}), ask, former)

    def keep(self, found: LoadedSettings) -> None:
        """Remember what was found, as the daemon does."""
        remember(str(self.state), found.label, found.document)


@pytest.fixture
def node(tmp_path: Path) -> _Node:
    return _Node(tmp_path)


def _wait(found: LoadedSettings) -> float:
    return float(found.settings.gate.wait)


def test_a_document_wins_over_the_file_and_the_environment_over_both(node: _Node) -> None:
    node.put("default", gate={"wait": "2s", "poll": "1s"})

    found = node.start(
        {"HOLDFAST_GATE_POLL": "3s"}, gate={"wait": "1s"}, reclaim={"poll": "7s"}
    ).settings

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

    found = node.start(label="mixed", gpu={"migStrategy": "single"}).settings

    assert found.gpu.mig_strategy == "mixed"
    assert found.gpu.pass_device_specs


def test_the_label_is_asked_for_until_it_is_remembered(node: _Node) -> None:
    node.put("default")
    node.put("other", gate={"wait": "3s"})
    node.keep(node.start())
    assert remembered_label(str(node.state)) is None, "the server did not tell"

    node.keep(node.start(label="other"))
    assert node.asked == ["label", "label"]
    assert node.state.stat().st_mode & 0o777 == 0o700, "it is the ledger's folder, too"
    assert _wait(node.start()) == 3
    remember(str(node.state), "", None)
    node.start()
    assert node.asked == ["label", "label"]


@pytest.mark.parametrize("content", [b"", b"\xff"])
def test_a_label_that_is_lost_on_disk_counts_as_never_read(node: _Node, content: bytes) -> None:
    node.put("default")
    node.state.mkdir()
    (node.state / CONFIG_LABEL).write_bytes(content)

    node.start()

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
        ({"http": {"port": 9}}, "http is the same for every document"),
        ({"host": {"sys": "/x"}}, "host is the same for every document"),
        ({"kubelet": {"poll": 1, "pluginDir": "/x"}}, "kubelet.pluginDir is the same for every"),
        ({"kubelet": {"podResourcesSocket": "/x"}}, "kubelet.podResourcesSocket is the same for"),
        ({"version": "v2"}, "'v2' is not supported"),
        ({"tpu": {"enabled": False}, "gpu": {"enabled": False}}, "nothing is left to advertise"),
    ],
)
def test_a_document_that_cannot_be_used_is_told_by_its_name_and_the_node_starts(
    node: _Node, content: dict[str, object], told: str
) -> None:
    node.put("one", **content)

    found = node.start(gate={"wait": "4s"})

    assert re.search(told, found.refused)
    assert found.instead == "no document is used"
    assert _wait(found) == 4
    with pytest.raises(SettingsError, match=told):
        load(node.file, {})


def test_no_document_sets_a_key_that_mounts_or_probes_depend_on(node: _Node) -> None:
    of_the_pod = [path for path in known_paths() if take_up(path) is TakeUp.POD]
    assert "http.port" in of_the_pod
    for path in of_the_pod:
        content: object = "/x"
        for key in reversed(path.split(".")):
            content = {key: content}
        (node.named / "one").write_text(yaml.safe_dump(content))

        assert "is the same for every document" in node.start().refused, path


def test_a_label_that_leads_nowhere_is_asked_for_again(node: _Node) -> None:
    node.put("fast", gate={"wait": "5s"})
    node.put("slow", gate={"wait": "20s"})
    remember(str(node.state), "renamed", None)

    found = node.start(label="fast")

    assert (_wait(found), found.label, found.refused) == (5, "fast", "")


@pytest.mark.parametrize("now", [None, "nowhere"])
def test_what_worked_last_counts_where_the_label_leads_nowhere(
    node: _Node, now: str | None
) -> None:
    node.put("default", gate={"wait": "1s"})
    node.put("slow", gate={"wait": "20s"})
    node.keep(node.start(label="slow"))
    (node.named / "slow").unlink()

    found = node.start(label=now)

    assert _wait(found) == 20
    assert found.label == (now or "slow")
    assert f"cannot use the document {now or 'slow'!r}, which the node's label" in found.refused
    assert found.instead == "the document slow is used, as it was when it worked last"


def test_the_document_that_worked_last_counts_where_it_says_nonsense_now(node: _Node) -> None:
    node.put("one", gate={"wait": "20s"})
    node.keep(node.start(label=""))
    (node.named / "one").write_text("gate: [")

    found = node.start(reclaim={"poll": "7s"})

    assert (_wait(found), float(found.settings.reclaim.poll)) == (20, 7), "the file counts, too"
    assert "cannot read" in found.refused


def test_a_document_that_works_no_more_with_the_file_as_it_is_does_not_count(node: _Node) -> None:
    node.put("one", gate={"wait": "20s"}, reclaim={"retry": {"last": "6s"}})
    node.keep(node.start(label=""))
    (node.named / "one").write_text("gate: [")

    found = node.start(reclaim={"retry": {"first": "7s"}})

    assert (_wait(found), found.document) == (25, None)
    assert found.instead == "no document is used"


def test_where_nothing_worked_before_the_node_counts_as_one_without_the_label(node: _Node) -> None:
    node.put("default", gate={"wait": "1s"})
    node.put("slow", gate={"wait": "20s"})

    found = node.start(label="nowhere")

    assert (_wait(found), found.label) == (1, "nowhere")
    assert found.instead == "the node counts as one without the label"


def test_of_a_document_that_is_not_used_no_key_is_told_to_have_no_effect(node: _Node) -> None:
    node.put("default", version="v1", flags={"plugin": {"migStrategy": "mixed"}})
    node.put("one", version="v1", flags={"migStrategy": "?", "plugin": {"gdsEnabled": True}})

    found = node.start(label="one")

    assert "gpu.migStrategy" in found.refused
    (told,) = found.ineffective
    assert "flags.plugin.migStrategy" in told


def test_where_the_file_needs_a_document_to_work_and_there_is_none_that_is_told(
    node: _Node,
) -> None:
    node.put("one", gate={"wait": "1s"})
    with pytest.raises(SettingsError, match="'nowhere', which the node's label names"):
        node.start(
            label="nowhere",
            named={"default": "no"},
            tpu={"enabled": False},
            gpu={"enabled": False},
        )


def test_an_empty_list_of_labels_reads_none_also_where_one_was_remembered(node: _Node) -> None:
    node.put("default", gate={"wait": "1s"})
    node.put("slow", gate={"wait": "20s"})
    node.keep(node.start(label="slow"))

    found = node.start(named={"labels": []})

    assert (_wait(found), found.refused) == (1, "")
    assert node.asked == ["label"]


def test_a_node_that_uses_no_document_any_more_keeps_none(node: _Node) -> None:
    node.put("one", gate={"wait": "20s"})
    node.keep(node.start(label=""))
    remember(str(node.state), "", None)
    (node.named / "one").write_text("gate: [")

    assert node.start().instead == "no document is used"


def test_what_a_process_went_by_counts_after_its_restart_whatever_is_there(node: _Node) -> None:
    node.put("one", gate={"wait": "20s"})
    former = node.start(label="one")

    by_file = node.start(text="gate: [", former=former)
    (node.named / "one").write_text("gate: [")
    by_document = node.start(label="nowhere", former=former)
    now = node.start(named={"folder": ""}, former=former)

    assert by_file.settings == by_document.settings == former.settings
    assert by_file.instead == by_document.instead == "the former configuration stays in use"
    assert by_document.label == "nowhere"
    assert (now.refused, _wait(now)) == ("", 25), "what works now counts"
    with pytest.raises(SettingsError, match="cannot read"):
        node.start(text="gate: [")


def test_a_folder_that_is_not_there_is_told(node: _Node, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read the documents in"):
        load(None, {"HOLDFAST_NAMED_FOLDER": str(tmp_path / "none")})
