"""Whether the cgroup that a pod's UID has is that pod's, or a later incarnation's."""

import pytest

from fakes.books import BOOT, X
from holdfast.model.book.book import PodRecord
from holdfast.model.ids import BootId


@pytest.mark.parametrize(
    ("inode", "boot", "former"),
    [
        pytest.param(7, BOOT, False, id="the same cgroup"),
        pytest.param(None, BOOT, False, id="its cgroup was never seen"),
        pytest.param(8, BOOT, True, id="made anew under the same UID"),
        pytest.param(7, "another boot", True, id="another boot gave the number away again"),
        pytest.param(None, "another boot", True, id="never seen before the node rebooted"),
    ],
)
def test_a_cgroup_is_the_pods_own_only_by_its_inode_in_the_same_boot(
    inode: int | None, boot: str, former: bool
) -> None:
    record = PodRecord(uid=X, boot=BootId(boot), inode=inode)
    assert record.is_former(7, BOOT) is former
