"""Which functions a pool takes."""

import pytest

from holdfast.model.ids import PciAddress, ResourceName
from holdfast.model.vfio import PoolSpec, pool_variables

_RESOURCE = ResourceName("example.com/nic")


@pytest.mark.parametrize(
    ("pool", "taken"),
    [
        (PoolSpec(resource=_RESOURCE, devices=("8086:1572",)), True),
        (PoolSpec(resource=_RESOURCE, devices=("8086:*",)), True),
        (PoolSpec(resource=_RESOURCE, devices=("8086:157F",)), False),
        (PoolSpec(resource=_RESOURCE, devices=("10de:*", "8086:15??")), True),
        (PoolSpec(resource=_RESOURCE, classes=("0200",)), True),
        (PoolSpec(resource=_RESOURCE, classes=("0x02",)), True),
        (PoolSpec(resource=_RESOURCE, classes=("0302",)), False),
        (PoolSpec(resource=_RESOURCE, addresses=("0000:3B:*",)), True),
        (PoolSpec(resource=_RESOURCE, addresses=("0000:3c:*",)), False),
        (PoolSpec(resource=_RESOURCE, addresses=("0000:3[abc]:*",)), False),
        (PoolSpec(resource=_RESOURCE, devices=("8086:*",), addresses=("0000:3c:*",)), False),
    ],
)
def test_a_pool_takes_what_matches_one_entry_of_each_list(pool: PoolSpec, taken: bool) -> None:
    assert pool.matches(PciAddress("0000:3b:00.0"), 0x8086, 0x1572, 0x020000) is taken


def test_kubevirt_finds_a_pools_functions_in_the_variable_that_it_looks_for() -> None:
    addresses = [PciAddress("0000:01:00.0"), PciAddress("0000:02:00.0")]
    assert pool_variables(ResourceName("example.com/nic-e810.x"), addresses) == {
        "PCI_RESOURCE_EXAMPLE_COM_NIC-E810_X": "0000:01:00.0,0000:02:00.0"
    }
