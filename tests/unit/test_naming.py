"""Which pods have a device that is only observed, by the rules of the settings at that moment."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from fakes.books import WHOLE, X, Y, Z, device_lock, inventory, keys, name, silicon
from fakes.ledgers import ledger_in
from holdfast.app.wiring.live import LiveSettings, RuleNames
from holdfast.ledger.ledger import Ledger
from holdfast.model.book.book import Book, DeviceLock
from holdfast.model.book.claims import Wish
from holdfast.model.book.draft import Draft
from holdfast.model.devices import Inventory
from holdfast.model.dra.passage import enter
from holdfast.model.ids import ClaimRef, ClaimUid, PodUid, ResourceName
from holdfast.model.kubelet import CheckpointEntry, KubeletView
from holdfast.runtime.watched import Watched
from holdfast.settings import Settings, convert
from holdfast.settings.sources import LoadedSettings
from manual_clock import ManualClock

_FOUND = inventory({WHOLE: silicon(d0="a", d1="b")})
_PODS = {"d0": X, "d1": Y}


def _observing(*addresses: str) -> Settings:
    rules: list[dict[str, Any]] = [
        {"match": {"pci": each}, "reclaimMode": "observe"} for each in addresses
    ]
    return convert({"devices": rules})


def _claim(number: int, *pods: PodUid, **wanted: Any) -> Callable[[Draft], object]:
    ref = ClaimRef("team", ClaimUid(f"claim-{number}"), "shared")
    wish = Wish(ref=ref, pods=dict.fromkeys(pods, ""), **wanted)
    return lambda draft: enter(draft, wish, "free")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with ledger_in(tmp_path, ManualClock()) as made:
        yield made


def _naming(live: LiveSettings, ledger: Ledger, found: Inventory = _FOUND) -> RuleNames:
    return RuleNames(live, ledger, Watched(KubeletView()), Watched(found))


async def test_a_rule_holds_from_when_it_is_in_use_though_no_scan_has_applied_it(
    ledger: Ledger,
) -> None:
    await ledger.apply(_claim(1, X, devices={WHOLE: silicon(d0="a")}))
    live = LiveSettings(LoadedSettings(settings=convert({})))
    naming = _naming(live, ledger)
    assert naming.may_end(X)

    live.in_use.set(_observing("a"))
    assert not naming.may_end(X)
    assert naming.may_end(Y)
    live.in_use.set(_observing("b"))
    assert naming.may_end(X)


class _Asked(Book, frozen=True, kw_only=True, dict=True):
    """Notes of which locks it is asked who may use them."""

    locks_asked: ClassVar[list[DeviceLock]] = []

    def pods_of(self, lock: DeviceLock) -> frozenset[PodUid]:
        self.locks_asked.append(lock)
        return super().pods_of(lock)


def test_for_each_of_many_pods_it_is_not_made_out_who_may_use_every_lock() -> None:
    """It took 33 ms of each look at 256 pods that had left something behind."""
    locks = {name(each): device_lock(name(each), pod=pod, since=0.0) for each, pod in _PODS.items()}
    ledger: Any = SimpleNamespace(book=Watched(_Asked(locks=locks)))
    naming = _naming(LiveSettings(LoadedSettings(settings=_observing("a"))), ledger)

    assert [naming.may_end(pod) for pod in (X, Y, Z)] == [False, True, True]
    assert not _Asked.locks_asked


async def test_each_pod_that_shares_a_claim_has_what_the_claim_has(ledger: Ledger) -> None:
    await ledger.apply(_claim(1, X, Y, devices={WHOLE: silicon(d0="a")}))
    await ledger.apply(_claim(2, Y, Z, devices={WHOLE: silicon(d1="b")}))
    naming = _naming(LiveSettings(LoadedSettings(settings=_observing("a"))), ledger)

    assert [naming.may_end(each) for each in (X, Y, Z)] == [False, False, True]


async def test_a_pod_that_looks_at_a_device_by_admin_access_has_it_too(ledger: Ledger) -> None:
    await ledger.apply(_claim(1, X, devices={}, admin={name("d0"): keys("a")}))
    naming = _naming(LiveSettings(LoadedSettings(settings=_observing("a"))), ledger)

    assert [naming.may_end(each) for each in (X, Y)] == [False, True]


async def test_of_hardware_that_is_gone_any_rule_may_have_been_for_it(ledger: Ledger) -> None:
    await ledger.apply(_claim(1, X, devices={WHOLE: silicon(d0="a")}))
    gone = inventory({WHOLE: silicon(d1="b")})

    live = LiveSettings(LoadedSettings(settings=_observing("zz")))
    naming = _naming(live, ledger, gone)
    assert not naming.may_end(X)
    live.in_use.set(convert({}))
    assert naming.may_end(X)


async def test_a_name_that_no_rule_gives_any_more_is_served_as_whoever_has_it_so_is(
    ledger: Ledger,
) -> None:
    debug, other = ResourceName("a.b/debug"), ResourceName("acme.example/widget")
    (moved,) = inventory({debug: silicon(d0="a")}).devices
    (theirs,) = inventory({other: silicon(d1="b")}).devices
    found = Inventory(devices=(replace(moved, found_as=ResourceName("google.com/tpu")), theirs))
    chips = LiveSettings(LoadedSettings(settings=convert({"tpu": {"api": "dra"}})))
    gpus = LiveSettings(LoadedSettings(settings=convert({"gpu": {"api": "dra"}})))

    for live, is_dra in ((chips, True), (gpus, False)):
        naming = _naming(live, ledger, found)
        assert naming.is_dra(debug) is is_dra, "as what its adapter calls it"
        assert not naming.is_dra(other), "a vendor without settings comes by the device plugin"

    gone = _naming(gpus, ledger, Inventory())
    assert not gone.is_dra(debug)
    await ledger.apply(_claim(1, X, devices={debug: silicon(d0="a")}))
    assert gone.is_dra(debug), "a claim has it, though its hardware is gone"
    assert not gone.is_dra(other)


@pytest.mark.parametrize("api", ["device-plugin", "dra"])
async def test_what_kubelets_checkpoint_still_has_of_hardware_that_comes_by_claims_keeps_no_name(
    ledger: Ledger, api: str
) -> None:
    chip, debug = name("d0"), ResourceName("a.b/debug")
    entry = CheckpointEntry(
        pod=X, container="main", resource=chip.resource, devices=frozenset({chip.id})
    )
    rules = [{"match": {"pci": "a"}, "resource": debug}]
    settings = convert(
        {"tpu": {"api": api, "resourceName": chip.resource}, "devices": rules, "gpu": {"api": api}}
    )
    live, view = (
        LiveSettings(LoadedSettings(settings=settings)),
        Watched(KubeletView(entries=(entry,))),
    )
    found = inventory({WHOLE: silicon(d0="a")})

    named = RuleNames(live, ledger, view, Watched(found)).assigned(found)

    resources = {each.name.resource for each in named.devices}
    assert resources == {debug if api == "dra" else chip.resource}
