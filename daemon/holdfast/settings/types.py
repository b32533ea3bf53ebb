"""What settings are made of: sections, durations, numbers within bounds and text of a form."""

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeGuard, cast, get_args

import msgspec
from msgspec import Meta

from holdfast.model.text import printable

MOST_SHOWN = 60
"""Characters of a text or a number that the error which refuses it has."""

Port = Annotated[int, Meta(ge=0, le=65535)]
Index = Annotated[int, Meta(ge=0)]
Replicas = Annotated[int, Meta(ge=2, le=256)]


def text(pattern: str, expected: str, most: int | None = None, unless: str | None = None) -> Meta:
    r"""Return the form of text that *pattern* matches as a whole; *expected* says it to people.

    The pattern is in the schemas too: Python, ECMAScript and Go's RE2 have to read it alike. So it
    has no look-ahead, and no ``.`` or ``\w``. *most* is how many characters there may be. What has
    the pattern *unless* is refused by the schema here, and by `validation`.
    """
    return Meta(
        # In Python $ also stands before a last line break; `schema` has it in place of \Z.
        pattern=rf"^(?:{pattern})\Z",
        description=expected,
        max_length=most,
        extra_json_schema=None if unless is None else {"not": {"pattern": unless}},
    )


def _direct(other: str) -> str:
    """Return the pattern of an absolute path without `..` and without *other* characters."""
    step = rf"[^/.{other}][^/{other}]*|\.([^/.{other}][^/{other}]*)?|\.\.[^/{other}]+"
    return f"(/({step})?)+"


CONTROL = "\\x00-\\x1f\\x7f-\\x9f\u2028\u2029\ufffe\uffff"
"""Characters that end a variable or, to YAML, a line; of some Helm makes an empty file."""
_UNSEEN = CONTROL + "\\xa0\\xad\u2000-\u200f\u202a-\u202f\u2060-\u206f\u3000\ufeff"
"""Characters that move a cursor, change the direction of reading or cannot be seen."""
_HEX = "[0-9a-fA-F?*]{1,4}"
_LABEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_RESOURCE = rf"{_LABEL}(\.{_LABEL})*/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
NOT_KUBELETS = r"^requests\.|kubernetes\.io/|^[^/]{245}"
"""What no resource that kubelet takes from a plugin is called. Its quota has `requests.` before."""

# Tabs and line ends are common in YAML, and Helm carries both.
Text = Annotated[str, text(rf"([\t\n]|[^{CONTROL}])*", "text without control characters")]
DirectPath = Annotated[
    str, text(_direct(CONTROL), "an absolute path without `..`, such as /run/holdfast")
]
DialedPath = Annotated[
    str,
    # The daemon's own gRPC takes a comma for the end of an address.
    text(_direct(f"{CONTROL},"), "an absolute path without `..` or a comma, such as /run/kubelet"),
]
AbsolutePath = Annotated[str, text(f"/[^{CONTROL}]*", "an absolute path such as /run/driver")]
OptionalPath = Annotated[
    str, text(f"(/[^{CONTROL}]*)?", "an absolute path such as /run/driver, or empty text")
]
OptionalFile = Annotated[
    str, text(f"(/[^{CONTROL}]+)?", "the absolute path of a file such as /run/file, or empty text")
]
SocketPrefix = Annotated[
    str,
    text(
        # To kubelet's gRPC a socket's path is part of a URL: %41 is an A, and ? and # end it.
        f"[^./?#%,{_UNSEEN}][^/?#%,{_UNSEEN}]*",
        "letters that can begin the name of a socket, none of them `?`, `#`, `%` or a comma, such "
        "as holdfast",
    ),
]
Resource = Annotated[
    str, text(_RESOURCE, "a resource name such as example.com/nvme", unless=NOT_KUBELETS)
]
OptionalResource = Annotated[
    str,
    text(
        f"({_RESOURCE})?",
        "a resource name such as example.com/nvme, or empty text",
        unless=NOT_KUBELETS,
    ),
]
Glob = Annotated[str, text(f"[^{CONTROL}]+", "a pattern such as `GPU-1a*` or `0000:3b:*`")]
PciIds = Annotated[str, text(f"{_HEX}:{_HEX}", "`vendor:device` in hex, such as 8086:1572")]
PciClass = Annotated[
    str, text("(0[xX])?[0-9a-fA-F]{2,6}", "the beginning of a PCI class in hex, such as 0302")
]
Topology = Annotated[
    str,
    text(
        "([1-9][0-9]{0,4}([xX][1-9][0-9]{0,4}){1,2})?", "a topology such as 2x4 or 2x2x1, or none"
    ),
]
DriverName = Annotated[
    str,
    text(
        rf"[a-z]([a-z0-9-]*[a-z0-9])?(\.{_LABEL})*",
        "a DNS name of at most 63 lower-case characters that begins with a letter, such as "
        "holdfast.dev",
        most=63,
    ),
]
AnnotationPrefix = Annotated[
    str,
    text(
        "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/",
        "the beginning of an annotation's key: a domain and a slash, such as cdi.k8s.io/",
    ),
]

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h)")
PATTERN = rf"({_NUMBER}(ms|s|m|h))+|{_NUMBER}"
"""What a duration looks like when it is text, as a regular expression."""
_LONGEST = 100 * 365 * 86_400
"""What a longer duration counts as, in seconds. To gRPC, a deadline in 250 years has passed."""
_SHORTEST = 0.001
"""What a shorter Interval counts as: with less, the daemon does nothing else any more."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The rules that all sections share: unknown keys are refused, names are camelCase."""


def plain(section: Section) -> dict[str, Any]:
    """Return *section* as plain values for YAML and JSON; `sources.convert` reads them again."""
    return cast("dict[str, Any]", msgspec.to_builtins(section, enc_hook=float))


def is_section(kind: object) -> TypeGuard[type[Section]]:
    """Tell whether *kind* is a section, and not the type of a value."""
    return isinstance(kind, type) and issubclass(kind, Section)


def forms(section: type[Section]) -> dict[str, Any]:
    """Return the type of each key of *section*, with the form that its text has."""
    return {each.encode_name: each.type for each in msgspec.structs.fields(section)}


def made_of(kind: object) -> Iterator[object]:
    """Yield *kind* and all that it is made of: types, forms and bounds."""
    yield kind
    for each in get_args(kind):
        yield from made_of(each)


def entry_of(kind: object) -> type[Section] | None:
    """Return the section that each entry of a list is, where it is one."""
    first = next(iter(get_args(kind)), None)
    return first if is_section(first) else None


class Duration(float):
    """A length of time in seconds; written ``250ms``, ``30s``, ``1h30m`` or as a number."""

    __slots__ = ()

    @classmethod
    def parse(cls, given: object) -> "Duration":
        """Return what *given* says; raise ValueError with what would be right."""
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            raise ValueError(  # noqa: TRY004 - msgspec takes ValueError alone for bad input
                "expected a duration such as 30s or 250ms"
            )
        seconds = _seconds(given) if isinstance(given, str) else given
        if not 0 <= seconds < math.inf:
            got = printable(repr(given), MOST_SHOWN)
            raise ValueError(f"expected a duration such as 30s or 250ms, got {got}")
        return cls(min(seconds, _LONGEST))


class Interval(Duration):
    """A Duration above zero: something is done again and again after it, and zero would spin."""

    __slots__ = ()

    @classmethod
    def parse(cls, given: object) -> "Interval":
        """Return what *given* says; raise ValueError with what would be right."""
        interval = super().parse(given)
        if not interval:
            raise ValueError("expected a duration above zero")
        return cls(max(interval, _SHORTEST))


def _seconds(text: str) -> float:
    """Return what *text* says; not a number when it says nothing."""
    if not re.fullmatch(PATTERN, text):
        return math.nan
    if text[-1] not in "smh":
        return float(text)
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
