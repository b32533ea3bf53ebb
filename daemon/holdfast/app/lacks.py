"""What this process may not do though its settings ask for it, by the table of needs."""

from holdfast.doctor.needs import NEEDS
from holdfast.host.privileges import privileges
from holdfast.host.root import HostRoot
from holdfast.settings import Settings


def lacks(settings: Settings, root: HostRoot) -> tuple[str, ...]:
    """Return, for each need that certainly is not met, what is lost without it and the remedy.

    What cannot be told, or costs a feature in some cases only, is the doctor's to warn of.
    """
    found = privileges(root)
    return tuple(
        f"without {need.privilege} {need.lost}: {need.remedy}"
        for need in NEEDS
        if need.sure and need.asked(settings) and need.has(found) is False
    )
