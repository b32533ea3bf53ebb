"""How calls about claims and calls of the API server end, as metrics count them."""

from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus


class PrepareOutcome(Enum):
    """How one claim's Prepare ended."""

    PREPARED = "prepared"
    WAITING = "waiting"
    """Not in time; kubelet asks again."""
    REFUSED = "refused"
    """No wait changes it."""


class UnprepareOutcome(Enum):
    """How one claim's Unprepare ended."""

    FREE = "free"
    WAITING = "waiting"
    HELD = "held"
    """Over for kubelet, while its devices are not free yet."""


class ApiOutcome(Enum):
    """How one request to the API server ended."""

    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    GONE = "gone"
    """There is no such object, or its version is too old."""
    CONFLICT = "conflict"
    BUSY = "busy"
    """It asks to wait (429)."""
    INVALID = "invalid"
    FAILED = "failed"
    """An error of the server's own (5xx)."""
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"


_BY_STATUS: Mapping[int, ApiOutcome] = {
    HTTPStatus.UNAUTHORIZED: ApiOutcome.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: ApiOutcome.FORBIDDEN,
    HTTPStatus.NOT_FOUND: ApiOutcome.GONE,
    HTTPStatus.GONE: ApiOutcome.GONE,
    HTTPStatus.CONFLICT: ApiOutcome.CONFLICT,
    HTTPStatus.TOO_MANY_REQUESTS: ApiOutcome.BUSY,
}


def api_outcome(status: int) -> ApiOutcome:
    """Return how a request ended that was answered with this HTTP status."""
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return ApiOutcome.OK
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ApiOutcome.FAILED
    return _BY_STATUS.get(status, ApiOutcome.INVALID)
