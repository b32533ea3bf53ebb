"""What the doctor makes of VFIO on the real kernel, and that its remedies mend what it found."""

import subprocess
from typing import Any

from holdfast.doctor.finding import Finding, Level, Node
from holdfast.doctor.vfio import vfio_findings
from holdfast.settings import convert
from vm.guest.node import GuestNode


def case_doctor_finds_the_chips_in_order_and_the_unbound_one(node: GuestNode) -> str:
    found = _found({})
    bad = [each for each in found if each.level is not Level.OK]
    # The chip without a driver is there in every case; everything else is as it should be.
    assert {each.check for each in bad} == {"driver"}, bad
    assert all("0000:00:0a." in each.reason for each in bad), bad
    for check in ("devices", "iommu", "no-iommu", "module", "container", "group", "node"):
        assert _levels(found, check) == {Level.OK}, found
    return f"4 chips in order; {bad[0].reason}"


def case_doctor_says_the_commands_that_bind_a_chip(node: GuestNode) -> str:
    pair = node.twin
    for function in pair:
        node.give(function)
        function.unbind()
    drivers = [each for each in _found({}) if each.check == "driver"]
    assert [each.level for each in drivers] == [Level.FAIL] * len(pair), drivers
    for each in drivers:
        subprocess.run(["sh", "-ec", each.remedy], check=True)
    after = _found({})
    assert {each.level for each in after} == {Level.OK}, after
    return f"{drivers[0].reason}; its remedy bound it: {_only(after, 'driver').reason}"


def case_doctor_names_the_neighbour_that_spoils_a_group(node: GuestNode) -> str:
    ours, sibling = node.mixed
    node.give(ours)
    node.give(sibling, "uio_pci_generic")
    pool = {"resourceName": "example.com/pool", "addresses": [ours.address]}
    settings = {"pools": [pool], "tpu": {"enabled": False}}
    spoilt = _only(_found(settings), "group")
    assert spoilt.level is Level.FAIL
    assert f"{sibling.address} in it is bound to uio_pci_generic" in spoilt.reason
    sibling.unbind()
    assert _levels(_found(settings), "group") == {Level.OK}
    return spoilt.reason


def _found(settings: dict[str, Any]) -> tuple[Finding, ...]:
    return tuple(vfio_findings(Node(settings=convert(settings))))


def _levels(found: tuple[Finding, ...], check: str) -> set[Level]:
    return {each.level for each in found if each.check == check}


def _only(found: tuple[Finding, ...], check: str) -> Finding:
    (only,) = (each for each in found if each.check == check)
    return only
