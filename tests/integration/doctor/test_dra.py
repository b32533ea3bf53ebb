"""What can be wrong with what claims need: kubelet's folders, the driver's sockets, the API server."""

import socket
from pathlib import Path

import pytest

from fakes.listener import listening
from fakes.nodetree import NodeTree
from holdfast.doctor.dra.folders import folder_findings
from holdfast.doctor.finding import Finding, Level
from holdfast.doctor.node import Node
from holdfast.settings import convert

_DRA = ("--set", "tpu.api=dra")
_DRIVER = "holdfast.dev"


@pytest.fixture
def claims(node: NodeTree) -> NodeTree:
    """A node whose kubelet knows DRA."""
    for name in ("plugins", "plugins_registry"):
        (node.folder / "var/lib/kubelet" / name).mkdir()
    return node


def test_without_hardware_for_claims_nothing_is_asked_of_kubelet(node: NodeTree) -> None:
    told = node.told()

    assert told.bad("dra") == {}
    assert told.of("dra", "api")["reason"] == "no hardware is served by DRA"
    assert [each["check"] for each in told.findings if each["area"] == "dra"] == ["api"]


def test_a_node_in_order_has_nothing_to_mend(claims: NodeTree) -> None:
    told = claims.told(*_DRA)

    assert told.bad("dra") == {}
    assert "the daemon makes it" in told.of("dra", "driver-folder")["reason"]
    (claims.folder / f"var/lib/kubelet/plugins/{_DRIVER}").mkdir()
    assert claims.told(*_DRA).of("dra", "driver-folder")["reason"].endswith("is there")


@pytest.mark.parametrize(
    ("folder", "check"), [("plugins_registry", "registry"), ("plugins", "driver-folder")]
)
def test_a_folder_of_kubelets_that_is_not_there_fails(
    folder: str, check: str, claims: NodeTree
) -> None:
    claims.remove(f"var/lib/kubelet/{folder}")

    told = claims.told(*_DRA)

    assert told.bad("dra") == {check: "FAIL"}
    assert "dra.enabled of the chart" in told.of("dra", check)["remedy"]


@pytest.mark.parametrize(
    ("folder", "check"),
    [("plugins_registry", "registry"), (f"plugins/{_DRIVER}", "driver-folder")],
)
@pytest.mark.parametrize(
    ("mount", "words"),
    [(("ro", "ext4"), "is mounted read-only"), (("rw", "overlay"), "it is a container's own")],
)
def test_a_folder_that_kubelet_does_not_see_or_that_is_read_only_fails(
    folder: str, check: str, mount: tuple[str, str], words: str, claims: NodeTree
) -> None:
    options, kind = mount
    (claims.folder / "var/lib/kubelet" / folder).mkdir(exist_ok=True)
    claims.write(
        "proc/1/mountinfo",
        "20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/x rw\n"
        f"21 20 8:2 / /var/lib/kubelet/{folder} {options},relatime - {kind} /dev/y {options}\n",
    )

    told = claims.told(*_DRA)

    assert told.bad("dra") == {check: "FAIL"}
    assert words in told.of("dra", check)["reason"]


def test_another_root_of_kubelet_is_looked_at_where_it_is(claims: NodeTree) -> None:
    told = claims.told(*_DRA, "--set", "dra.kubeletRoot=/data/kubelet")

    assert set(told.bad("dra")) == {"registry", "driver-folder"}
    assert "/data/kubelet/plugins_registry is not there" in told.of("dra", "registry")["reason"]


# From here on the node is live: real sockets, and real processes behind them.


def _live(folder: Path) -> dict[str, Finding]:
    settings = {
        "stateDir": str(folder),
        "dra": {"kubeletRoot": str(folder)},
        "tpu": {"api": "dra"},
    }
    found = folder_findings(Node(settings=convert(settings)))
    worst: dict[str, Finding] = {}
    for each in sorted(found, key=lambda each: list(Level).index(each.level)):
        worst[each.check] = each
    return worst


@pytest.fixture
def folder(short_path: Path) -> Path:
    (short_path / "plugins_registry").mkdir()
    (short_path / "plugins" / _DRIVER).mkdir(parents=True)
    return short_path


def _sockets(folder: Path) -> list[Path]:
    return [
        folder / "plugins" / _DRIVER / "dra.sock",
        folder / f"plugins_registry/{_DRIVER}-reg.sock",
    ]


def test_the_daemon_answers_on_the_drivers_sockets_while_it_runs(folder: Path) -> None:
    sockets = _sockets(folder)
    with listening("holdfast", folder, [folder / "control.sock", *sockets]):
        told = _live(folder)
        assert {each.level for each in told.values()} == {Level.OK}

        sockets[0].unlink()
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(sockets[0]))
        silent = _live(folder)["driver-sockets"]
        assert silent.level is Level.FAIL
        assert f"nobody answers on {sockets[0]} (Connection refused)" in silent.reason

    down = _live(folder)["driver-sockets"]
    assert (down.level, down.reason) == (Level.OK, "no daemon runs that could serve claims")


@pytest.mark.parametrize("runs", [True, False])
def test_a_second_driver_of_the_same_name_is_found(runs: bool, folder: Path) -> None:
    service, registration = _sockets(folder)
    ours = [folder / "control.sock", registration] if runs else [folder / "none.sock"]
    with (
        listening("holdfast", folder, ours),
        listening("another", folder, [service]) as pid,
    ):
        found = _live(folder)["driver-sockets"]

    assert found.level is Level.FAIL
    assert f"pid {pid} answers on {service}, and is not the daemon" in found.reason
    assert "dra.driverName" in found.remedy
