"""Writes docs/messages.md: every sentence that people are told of who waits, with what to do."""

from collections.abc import Iterator

from holdfast.model.book.messages import LONGEST, Message

_INTRODUCTION = f"""\
# What a waiting pod is told

holdfast says in one sentence what a pod waits for, who has it, what happens next, and which command tells more. `make chart` writes this
page from the code (`daemon/holdfast/model/book/messages.py`): do not edit it.

    waiting for 1 of 4 google.com/tpu: 0000:00:05.0 is still open in python (pid 3077) of default/pod-a, which has ended; holdfast ends it
    after 60 s unless it is somebody's work (holdfast holders)

The sentence is the same in each place:

- the events and the status of a pod whose container may not start yet (`kubectl describe pod`), also of one with a ResourceClaim;
- the Event `WaitingForDevice` that holdfast writes with `events.enabled`;
- the health of a device in a pod's status, without its beginning; the Event `DeviceHeld` and the node's condition;
- the column `waits` of claims in `holdfast status`.

It has at most {LONGEST} characters, for any number of devices: longer names lose their middle, and more holders or devices are counted. It has no
age or countdown, and stays the same until something has changed: kubelet writes an event again only when its text is another. A pod has
its UID in it only while its name is not known. `cannot` in place of `waiting for` means that no wait changes it.

`holdfast locks`, `holdfast holders` and `holdfast status`, with `-o json`, have the reasons at their full length, and so has the log (`gate refused`,
`claim not prepared`). What a claim or an Allocate is refused for, for good, reads `cannot prepare claim NAMESPACE/NAME: REASON` or
`cannot allocate RESOURCE/DEVICE: REASON`, and says at its end what to do.

The words in capitals stand for names: DEVICE is the device's id, OWNER a pod or a claim, PROGRAM a command with its pid.

| text | cause | what to do |
|---|---|---|
"""


def page() -> str:
    """Return the text of the page."""
    return _INTRODUCTION + "".join(_rows())


def _rows() -> Iterator[str]:
    for each in Message:
        text = each.value
        shown = text.template.format_map(_Capitals())
        yield f"| {shown} | {text.cause} | {text.remedy} |\n"


class _Capitals(dict[str, str]):
    """Has for each field its name in capitals."""

    def __missing__(self, name: str) -> str:
        return name.upper()
