"""Readiness, by the parts of a daemon that runs none of them: each check, and what makes it fail."""

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from fakes.books import device_of
from fakes.books import name as named
from holdfast.app.answers.readiness import readiness
from holdfast.app.watches.proof import CONTROL, Dial
from holdfast.app.wiring.assembly import Assembly
from holdfast.app.wiring.core import Core
from holdfast.app.wiring.hosts import Hosts
from holdfast.app.wiring.live import LiveSettings
from holdfast.discovery.source import Source
from holdfast.ledger.ledger import open_ledger
from holdfast.model.book.offers import Offers
from holdfast.model.gate.cdi import PublishedSpecs
from holdfast.model.ids import ResourceName
from holdfast.model.kubelet import KubeletView, Registration
from holdfast.model.node.readiness import ReadinessCheck, check
from holdfast.reclaim.resetter import _RunningTrial
from holdfast.settings import Settings, convert
from holdfast.settings.sections import LabelsSettings
from holdfast.settings.sources import LoadedSettings
from holdfast.telemetry.metrics import Metrics
from manual_clock import ManualClock
from simulated.node import SimulatedNode

_TPU = ResourceName("google.com/tpu")
_DEVICE = device_of(named("a", _TPU), "a")
_LONG = 300.0
_PAGE = Path(__file__).parents[2] / "docs/operations.md"
_TABLE = _PAGE.read_text("utf-8").partition("| check | passes when |\n")[2].partition("\n\n")[0]
_ROWS = [
    name for row in _TABLE.splitlines() for name in re.findall("`([^`]+)`", row.split(" | ")[0])
]
_ELSEWHERE = {"registered DRIVER", "NVIDIA driver", "GPU CDI specs", "checks up to date", "up"}
"""Checks of DRA's driver, of vendors and of what answers probes, which this node has not."""


class Vendor(Source):
    """An adapter whose driver answers until it has a problem."""

    name = "vendor"
    problem = ""

    def checks(self) -> Iterator[ReadinessCheck]:
        yield check("a driver", self.problem)


class Node:
    """The parts of a daemon on a node on which all is well."""

    def __init__(self, parts: Assembly, clock: ManualClock, vendor: Vendor) -> None:
        self.parts: Any = parts  # what runs alone sets is set here by hand
        self.clock = clock
        self.vendor = vendor
        self.slices = ""

    async def make_well(self) -> None:
        parts, now = self.parts, self.clock.monotonic()
        parts.kubelet.offering.offers.set(Offers(devices={_TPU: ()}))
        self.register(registered=True, streams=1, problem="")
        self.dial(CONTROL, Dial(at=now, problem=""))
        self.dial(_TPU, Dial(at=now, problem=""))
        parts.core.view.set(KubeletView(readable=True, problem=""))
        await parts.watches.proof.prove()
        inventory = parts.core.inventory
        inventory.set(replace(inventory.value, resources=(_TPU,), devices=(_DEVICE,)))
        parts.discovery.scanner.problem.set("")
        parts.discovery.scanner.looked_at = now
        parts.watches.labels._concerned = True
        parts.reclaim.watcher.looked.set()
        parts.reclaim.watcher.compared_at = now
        parts.discovery.look.full_scan_at = now
        parts.lacks.set(())
        parts.dra = SimpleNamespace(checks=lambda: [check("ResourceSlices", self.slices)])

    def register(self, **state: Any) -> None:
        self.parts.allocation.registrar.registrations.set({_TPU: Registration(**state)})

    def dial(self, name: str, result: Dial) -> None:
        self.parts.watches.sockets._results[name] = result

    def use(self, settings: Settings) -> None:
        self.parts.core.live.in_use.set(settings)

    def checks(self) -> dict[str, ReadinessCheck]:
        found = readiness(self.parts)
        assert len({each.name for each in found}) == len(found)
        return {each.name: each for each in found}

    def failed(self) -> dict[str, str]:
        return {each.name: each.reason for each in self.checks().values() if not each.passes}


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Node]:
    simulated = SimulatedNode(short_path / "node", chips=1)
    (short_path / "state").mkdir()
    names = ("sys", "proc", "dev", "cgroup", "etc", "run")
    settings = convert(
        {
            "stateDir": str(short_path / "state"),
            "host": {name: str(getattr(simulated.root, name)) for name in names},
            "kubelet": {"pluginDir": str(short_path / "dp")},
            "readiness": {"requireDevices": True},
        }
    )
    host, clock, vendor = Hosts(settings), ManualClock(), Vendor()
    ledger = await open_ledger(
        short_path / "state", host.lanes["ledger"], clock=clock, boot=host.boot, locks=()
    )
    core = Core(LiveSettings(LoadedSettings(settings=settings)), host, ledger, clock, Metrics())
    parts = Assembly(core, [lambda _context: vendor])
    made = Node(parts, clock, vendor)
    await made.make_well()
    yield made
    await ledger.close()
    host.close()
    simulated.close()


@contextmanager
def _stuck(node: Node, name: str, since: float) -> Iterator[None]:
    """Have the lane called *name* look as while a call on it hangs."""
    lanes = node.parts.core.host.lanes
    lane, lanes[name] = lanes[name], SimpleNamespace(stuck_since=since)
    yield
    lanes[name] = lane


def _fail_ledger(node: Node, since: float, problem: str = "") -> None:
    node.parts.core.ledger._failing_since = since
    node.parts.core.ledger._problem = problem


def _hang_reset(node: Node) -> None:
    node.parts.reclaim.resetter._running[_DEVICE.name] = _RunningTrial(
        fence=1,
        keys=_DEVICE.keys,
        lane=cast("Any", SimpleNamespace(name="reset a")),
        began=node.clock.monotonic() - _LONG,
        number=1,
    )


def _is_old(node: Node, part: str, field: str) -> None:
    setattr(attrgetter(part)(node.parts), field, node.clock.monotonic() - _LONG)


Fault = Callable[[Node], object]

_FAULTS: list[tuple[Fault, str, str]] = [
    (
        lambda node: node.register(streams=1, problem="kubelet is gone"),
        f"registered {_TPU}",
        "kubelet is gone",
    ),
    (
        lambda node: node.register(registered=True, problem=""),
        f"stream {_TPU}",
        "no ListAndWatch stream",
    ),
    (lambda node: setattr(node, "slices", "HTTP 403"), "ResourceSlices", "HTTP 403"),
    (
        lambda node: node.dial(_TPU, Dial(at=0.0, problem="it is not there")),
        f"socket {_TPU}",
        "it is not there",
    ),
    (
        lambda node: node.dial(CONTROL, Dial()),
        "socket control",
        "not dialled yet",
    ),
    (
        lambda node: node.dial(CONTROL, Dial(at=node.clock.monotonic() - _LONG, problem="")),
        "socket control",
        "the last result is 300 s old",
    ),
    (
        lambda node: node.parts.core.view.set(KubeletView(problem="it is garbage")),
        "kubelet checkpoint",
        "it is garbage",
    ),
    (
        lambda node: _fail_ledger(node, node.clock.monotonic() - 42.0),
        "ledger",
        "no write has succeeded for 42 s",
    ),
    (
        lambda node: setattr(node.parts.core.ledger, "proven_at", None),
        "ledger",
        "no result yet",
    ),
    (
        lambda node: _is_old(node, "core.ledger", "proven_at"),
        "ledger",
        "the last result is 300 s old",
    ),
    (
        _hang_reset,
        "device resets",
        "lane reset a is stuck for",
    ),
    (
        lambda node: setattr(node.parts.discovery.scanner, "looked_at", None),
        "hardware",
        "no result yet",
    ),
    (
        lambda node: node.parts.discovery.scanner._failed(OSError("no sysfs")),
        "hardware",
        "cannot scan the hardware: no sysfs",
    ),
    (
        lambda node: _is_old(node, "discovery.scanner", "looked_at"),
        "hardware",
        "the last result is 300 s old",
    ),
    (
        lambda node: node.parts.core.inventory.set(
            replace(node.parts.core.inventory.value, devices=())
        ),
        "devices",
        "no devices on this node",
    ),
    (
        lambda node: node.parts.discovery.specs._publish(
            PublishedSpecs(problem="the disk is full")
        ),
        "CDI specs",
        "the disk is full",
    ),
    (
        lambda node: node.parts.watches.labels._problem.set("the disk is full"),
        "node labels",
        "the disk is full",
    ),
    (
        lambda node: setattr(node.vendor, "problem", "no NVML"),
        "a driver",
        "no NVML",
    ),
    (
        lambda node: node.parts.reclaim.watcher.looked.clear(),
        "first process scan",
        "has not finished",
    ),
    (
        lambda node: node.parts.reclaim.watcher.problem.set("lane pods is stuck"),
        "lock reconciliation",
        "lane pods is stuck",
    ),
    (
        lambda node: _is_old(node, "reclaim.watcher", "compared_at"),
        "lock reconciliation",
        "the last result is 300 s old",
    ),
    (
        lambda node: setattr(
            node.parts.discovery.look, "full_gaps", ("set hostPID: true", "another")
        ),
        "process visibility",
        "set hostPID: true",
    ),
    (
        lambda node: node.parts.lacks.set(("without KILL nobody is ended",)),
        "privileges",
        "without KILL",
    ),
    (
        lambda node: setattr(node.parts.core.live, "refused", "gate.wiat: no such key"),
        "configuration",
        "gate.wiat",
    ),
]


def _as_told(name: str) -> str:
    """Return what the page calls the check *name*."""
    return re.sub("^lane .*", "lane NAME", name.replace(_TPU, "RESOURCE"))


async def test_where_all_is_well_every_check_passes_and_none_gives_a_reason(node: Node) -> None:
    checks = node.checks()

    assert node.failed() == {}
    assert [each.reason for each in checks.values() if each.reason] == []


async def test_the_page_has_every_check_in_the_order_in_which_they_are_shown(node: Node) -> None:
    names = [name for name in node.checks() if name != "a driver"]

    told = list(dict.fromkeys(map(_as_told, names)))
    assert told == [name for name in _ROWS if name not in _ELSEWHERE], (
        "docs/operations.md needs a row for each, in the order of /readyz"
    )
    assert set(_ROWS) >= _ELSEWHERE


@pytest.mark.parametrize(("fault", "name", "reason"), _FAULTS)
async def test_each_fault_fails_the_check_of_its_name_and_no_other(
    node: Node, fault: Fault, name: str, reason: str
) -> None:
    fault(node)

    failed = node.failed()
    assert list(failed) == [name]
    assert reason in failed[name]


async def test_a_call_that_hangs_fails_the_check_of_its_lane_and_no_other(node: Node) -> None:
    with _stuck(node, "scan", node.clock.monotonic() - 42.0):
        assert node.failed() == {"lane scan": "a call has hung for 42 s"}
        assert node.checks()["lane scan"].public == "a call has hung for 42 s"


async def test_every_check_has_a_fault_that_makes_it_fail(node: Node) -> None:
    lanes = {f"lane {name}" for name in node.parts.core.host.lanes}

    assert {name for _, name, _ in _FAULTS} == set(node.checks()) - lanes, (
        "each needs a fault in _FAULTS"
    )


async def test_the_document_in_use_and_a_label_that_cannot_be_read_are_told(node: Node) -> None:
    node.parts.core.live.basis = "document a100"
    node.parts.core.live.node_label.set("nodes is forbidden")

    found = node.checks()["configuration"]

    assert found.passes
    assert found.reason == "document a100; nodes is forbidden"
    assert not found.public, "what the API server says is not for everybody"


async def test_a_resource_that_kubelet_never_heard_of_is_not_registered(node: Node) -> None:
    node.parts.allocation.registrar.registrations.set({})

    assert set(node.failed()) == {f"registered {_TPU}", f"stream {_TPU}"}


async def test_a_node_whose_kubelet_has_no_checkpoint_yet_is_ready(node: Node) -> None:
    await node.parts.kubelet.reader.refresh()
    node.parts.core.view.set(KubeletView(problem="no such file"))

    assert node.failed() == {}
    assert node.checks()["kubelet checkpoint"].reason == "no such file"


async def test_a_rule_for_devices_that_does_nothing_is_told_and_names_no_device_to_anybody(
    node: Node,
) -> None:
    idle = ("devices[0] (uuid GPU-9) does nothing: it matches no device of this node",)
    inventory = node.parts.core.inventory
    inventory.set(replace(inventory.value, idle_rules=idle))

    assert node.failed() == {}
    assert node.checks()["devices"].reason == idle[0]
    assert node.checks()["devices"].public == "rules that do nothing: 1"


async def test_a_node_without_devices_is_ready_and_says_so_unless_they_are_asked_for(
    node: Node,
) -> None:
    inventory = node.parts.core.inventory
    inventory.set(replace(inventory.value, devices=()))
    node.use(replace(node.parts.core.settings, readiness=Settings().readiness))

    assert node.failed() == {}
    found = node.checks()["devices"]
    assert (found.reason, found.public) == ("no devices on this node", "no devices on this node")


async def test_a_node_without_an_adapter_s_hardware_has_no_check_of_it(node: Node) -> None:
    node.parts.discovery.sources.put(Source())
    node.parts.discovery.sources._sources.pop("vendor")

    assert node.failed() == {}
    assert "a driver" not in node.checks()


async def test_labels_that_nobody_wants_are_not_checked(node: Node) -> None:
    node.use(replace(node.parts.core.settings, labels=LabelsSettings(folder="/nowhere/at/all")))
    await node.parts.watches.labels.refresh()

    assert "node labels" not in node.checks()


async def test_each_fact_that_is_learned_now_and_then_says_when_it_was(node: Node) -> None:
    now = node.clock.monotonic()
    await node.clock.advance(1.0)
    seen = {name: each.seen for name, each in node.checks().items()}

    for name in (
        "ledger",
        "hardware",
        "lock reconciliation",
        "socket control",
        f"socket {_TPU}",
        "process visibility",
    ):
        assert seen[name] == now
    assert seen["CDI specs"] is None


async def test_why_the_ledger_fails_is_told_to_root_and_not_over_http(node: Node) -> None:
    """The reason names a path, and may name another daemon's pid."""
    why = "cannot write the ledger /state/ledger.db: disk I/O error"
    _fail_ledger(node, node.clock.monotonic() - 42.0, why)

    found = node.checks()["ledger"]

    assert found.reason == f"no write has succeeded for 42 s: {why}"
    assert found.public == "no write has succeeded for 42 s"


async def test_what_a_scan_did_not_see_is_counted_for_everybody_and_told_to_root(
    node: Node,
) -> None:
    node.parts.discovery.look.full_gaps = ("pid 7 (train): permission denied", "pid 8 (eval): gone")

    found = node.checks()["process visibility"]

    assert found.reason == "pid 7 (train): permission denied"
    assert found.public == "the last scan had gaps: 2"


async def test_a_changed_configuration_that_cannot_be_used_is_public_and_its_text_is_not(
    node: Node,
) -> None:
    node.parts.core.live.refused = "cannot read /etc/holdfast/x: denied"

    found = node.checks()["configuration"]

    assert found.reason == "cannot read /etc/holdfast/x: denied"
    assert found.public == "the configuration as it is now cannot be used; another is in use"
