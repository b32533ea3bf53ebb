"""The family of errors holdfast raises on purpose; anything else is a bug.

A bug ends the process, or else only the call in which it shows. Messages read
"cannot <verb> <thing>: <reason>" and say what to do where that is known.
"""


class HoldfastError(Exception):
    """Any error that has a reader: an operator, a user of `kubectl describe`, or a program."""


class SettingsError(HoldfastError):
    """The configuration cannot be used; the message names the path of the key."""


class HostError(HoldfastError):
    """A file of the kernel or the driver could not be read or written; the text names its path."""


class LaneStuckError(HoldfastError):
    """A blocking call gave no answer within its deadline."""


class LedgerError(HoldfastError):
    """The ledger could not record a move; nothing of it was recorded."""


class LedgerUnusableError(LedgerError):
    """The ledger's file cannot be used, such as one that is locked; it is never overwritten."""


class LedgerUnreadableError(LedgerUnusableError):
    """What is in the ledger's file is damaged, or of another version: no start could read it."""


class LedgerLostError(LedgerError):
    """What is written to the ledger does not stay: its files or its disk are not what they were."""


class SecondDaemonError(LedgerUnusableError):
    """Another daemon has what only one may have."""


class AllocationRefusedError(HoldfastError):
    """Allocate was asked for something that can never work."""


class ClaimRefusedError(HoldfastError):
    """A claim cannot be prepared, however long one waits; kubelet shows the text."""


class GateRefusedError(HoldfastError):
    """A container may not start yet; kubelet shows the text and asks again."""


class RequestRefusedError(HoldfastError):
    """What a person asked for by hand cannot be done as things stand; nothing was changed."""


class KubeletError(HoldfastError):
    """Kubelet could not be reached, refused, or wrote something that cannot be read."""


class ApiServerError(HoldfastError):
    """The API server could not be asked, or refused; the text says which and why."""


class UnreadableAnswerError(ApiServerError):
    """The API server's answer is not what was asked for, or is nested too deep to be read."""


class ObjectGoneError(ApiServerError):
    """The API server has no such object (404)."""


def bug(error: Exception) -> str:
    """Return what to say of an *error* that nobody thought of and that ends no process."""
    return f"{type(error).__name__}: {error}; this is a bug in holdfast, see its log"


def no_decision(seconds: float) -> str:
    """Return what to say of a call of kubelet's that is answered undecided after *seconds*."""
    return (
        f"no decision in {seconds:g} s; is the node overloaded? `holdfast status` shows what does "
        "not answer"
    )
