"""What is advertised of GPUs: one that errs, a driver that is away, nodes that are missing."""

import pytest
from msgspec.structs import replace

from holdfast.model.cards import Sharing, clash
from holdfast.model.devices import DeviceNode, FaultKind
from holdfast.model.ids import DeviceId, DeviceName, ResourceName
from holdfast.model.nvidia.devices import GpuFacts, gpu_devices
from holdfast.model.nvidia.gpu import DriverState, Gpu, GpuProblem, GpuReading, MigSlice
from holdfast.model.nvidia.mig import MigStrategy, lay_out
from holdfast.vendors.nvidia.driver import _caps

ONE = Gpu(index=0, uuid="GPU-1", minor=0)
TWO = Gpu(index=1, uuid="GPU-2", minor=1)
NODES = {minor: DeviceNode(path=f"/dev/nvidia{minor}", rdev=195 << 8 | minor) for minor in (0, 1)}


def facts(*gpus: Gpu, state: DriverState = DriverState.READY) -> GpuFacts:
    layout = lay_out(GpuReading(state=DriverState.READY, gpus=gpus), MigStrategy.NONE)
    return GpuFacts(state=state, layout=layout, nodes=NODES)


def test_a_lost_gpu_is_ill_and_the_others_are_well() -> None:
    lost = GpuProblem(asked="handle", error="NVML_ERROR_GPU_IS_LOST", lost=True)
    ill, well = gpu_devices(facts(replace(ONE, problems=(lost,)), TWO))
    assert [fault.kind for fault in ill.faults] == [FaultKind.ILL]
    assert not ill.faults[0].kind.permanent
    assert "NVML_ERROR_GPU_IS_LOST" in ill.faults[0].text
    assert well.healthy


def test_what_a_gpu_may_fail_to_tell_costs_it_nothing() -> None:
    untold = tuple(GpuProblem(asked=what, error="oops") for what in ("memory", "name"))
    (device,) = gpu_devices(facts(replace(ONE, problems=untold)))
    assert device.healthy


def test_while_the_driver_is_away_its_gpus_stay_and_say_why() -> None:
    away = replace(facts(ONE, TWO, state=DriverState.NOT_READY), reason="it is being replaced")
    devices = gpu_devices(away)
    assert [device.name.id for device in devices] == ["GPU-1", "GPU-2"]
    assert {fault.kind for device in devices for fault in device.faults} == {FaultKind.NO_DRIVER}
    assert "it is being replaced" in devices[0].faults[0].text


def test_a_gpu_without_a_node_is_unhealthy_with_the_reason_that_there_is() -> None:
    bare = replace(facts(ONE), nodes={})
    (device,) = gpu_devices(bare)
    assert [fault.text for fault in device.faults] == ["there is no device node nvidia0"]
    (device,) = gpu_devices(replace(bare, no_nodes="no folder has nvidiactl"))
    assert [fault.text for fault in device.faults] == ["no folder has nvidiactl"]


def test_what_a_pod_has_and_its_strategy_does_not_advertise_stays_until_the_pod_lets_it_go() -> (
    None
):
    def divided(gpu: Gpu, uuid: str, profile: str) -> Gpu:
        piece = MigSlice(uuid=uuid, gi=7, ci=0, profile=profile)
        return replace(gpu, mig=True, slices=(piece,))

    three = Gpu(index=2, uuid="GPU-3", minor=1)
    gpus = (
        divided(ONE, "MIG-1", "1g.10gb"),
        *(divided(g, f"M-{g.uuid}", "3g.40gb") for g in (TWO, three)),
    )
    layout = lay_out(GpuReading(gpus=gpus), MigStrategy.SINGLE)
    known = replace(facts(ONE), layout=layout)
    stays = ["M-GPU-2", "M-GPU-3"]
    assert [device.name.id for device in gpu_devices(known)] == stays
    for resource in ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb"):
        name = DeviceName(ResourceName(resource), DeviceId("MIG-1"))
        *others, kept = gpu_devices(known, {name: gpus[0].keys - {gpus[0].key}})
        assert (kept.name, kept.healthy) == (name, True)
        assert "does not advertise" in kept.leaving
        assert not any(each.leaving for each in others)
    moved = DeviceName(ResourceName("example.com/small"), DeviceId("MIG-1"))
    had = {moved: gpus[0].keys - {gpus[0].key}}
    assert [device.name.id for device in gpu_devices(known, had)] == stays


@pytest.mark.parametrize("strategy", [MigStrategy.MIXED, MigStrategy.SINGLE])
def test_a_divided_gpu_that_a_pod_has_whole_stays_its_alone_under_another_strategy(
    strategy: MigStrategy,
) -> None:
    piece = MigSlice(uuid="MIG-1", gi=7, ci=0, profile="1g.10gb")
    sliced = replace(ONE, mig=True, slices=(piece,))
    (whole,) = gpu_devices(
        replace(facts(ONE), layout=lay_out(GpuReading(gpus=(sliced,)), MigStrategy.NONE))
    )
    more = replace(sliced, slices=(piece, replace(piece, uuid="MIG-2", gi=8)))
    now = replace(facts(ONE), layout=lay_out(GpuReading(gpus=(more,)), strategy))
    *slices, kept = gpu_devices(now, {whole.name: whole.keys})
    assert (kept.name, kept.healthy, bool(kept.leaving)) == (whole.name, True, True)
    assert [each.name.id for each in slices] == ["MIG-1", "MIG-2"]
    assert all(clash(each.keys, whole.keys) for each in slices)
    since = gpu_devices(now, {whole.name: frozenset({ONE.key})})
    assert [each.name.id for each in since] == ["MIG-1", "MIG-2"], "it was divided since"


def test_who_draws_on_a_gpu_holds_it_and_no_slice() -> None:
    draws = (DeviceNode(path="/dev/dri/renderD128", rdev=226 << 8 | 128),)
    sliced = replace(TWO, mig=True, slices=(MigSlice(uuid="MIG-1", gi=7, ci=0, profile="1g.10gb"),))
    layout = lay_out(GpuReading(gpus=(ONE, sliced)), MigStrategy.MIXED)
    known = replace(facts(ONE), layout=layout, drm={ONE.uuid: draws, TWO.uuid: draws})
    shared = {ResourceName("nvidia.com/gpu"): Sharing(replicas=2)}
    for devices in (gpu_devices(known), gpu_devices(known, shared=shared)):
        held = {device.name.resource: device.other_nodes for device in devices}
        assert held == {"nvidia.com/gpu": draws, "nvidia.com/mig-1g.10gb": ()}


def test_a_slice_has_the_capability_nodes_of_its_place() -> None:
    sliced = replace(ONE, mig=True, slices=(MigSlice(uuid="MIG-1", gi=7, ci=0, profile="1g.10gb"),))
    nodes = (DeviceNode(path="/dev/nvidia-caps/nvidia-cap30", rdev=30),)
    for strategy in MigStrategy:  # a pod may have it under any
        layout = lay_out(GpuReading(gpus=(sliced,)), strategy)
        assert _caps(layout, {(0, 7, 0): nodes, (0, 8, 0): ()}) == {DeviceId("MIG-1"): nodes}
        assert _caps(layout, {(1, 7, 0): nodes}) == {}


def test_a_slice_that_is_no_more_excludes_what_its_pod_can_reach_while_it_is_locked() -> None:
    gone = MigSlice(uuid="MIG-gone", gi=7, ci=0, profile="")
    stays = ONE.key_of(gone)
    place, other = replace(gone, uuid="MIG-same-place"), replace(gone, uuid="MIG-other", gi=8)
    had = {
        DeviceName(ResourceName("nvidia.com/mig-1g.10gb"), DeviceId("MIG-gone")): frozenset({stays})
    }
    whole, bystander = gpu_devices(facts(ONE, TWO), had)
    assert stays in whole.keys
    assert stays not in bystander.keys
    (whole, _) = gpu_devices(facts(ONE, TWO))
    assert stays not in whole.keys, "nobody has it any more"
    (whole, _) = gpu_devices(facts(ONE, TWO), {whole.name: whole.keys | {stays}})
    assert stays not in whole.keys, "it is the whole GPU's own lock that has it"

    sliced = replace(ONE, mig=True, slices=(place, other))
    layout = lay_out(GpuReading(gpus=(sliced,)), MigStrategy.SINGLE)
    now = replace(facts(ONE), layout=layout)
    one, two = gpu_devices(now, had)
    assert one.keys == {ONE.key_of(place), stays}
    assert two.keys == {ONE.key_of(other)}

    had = {DeviceName(ResourceName("nvidia.com/gpu"), DeviceId("GPU-1")): frozenset({ONE.key})}
    one, two = gpu_devices(now, had)
    assert ONE.key in one.keys & two.keys, "a pod has the GPU whole, from before it was divided"
