"""Whether the cgroup that a pod's UID has is that pod's, or a later incarnation's."""

import pytest

from fakes.books import BOOT, X
from holdfast.model.book.book import PodRecord
from holdfast.model.ids import BootId


@pytest.mark.parametrize(
    ("inode", "boot", "former"),
    [
        (7, BOOT, False),
        (None, BOOT, False),
        (8, BOOT, True),
        (7, "another boot", True),
        (None, "another boot", True),
    ],
    ids=[
        "the same cgroup",
        "its cgroup was never seen",
        "made anew under the same UID",
        "another boot gave the number away again",
        "never seen before the node rebooted",
    ],
)
def test_a_cgroup_is_the_pods_own_only_by_its_inode_in_the_same_boot(
    inode: int | None, boot: str, former: bool
) -> None:
    record = PodRecord(uid=X, boot=BootId(boot), inode=inode)
    assert record.is_former(7, BOOT) is former
