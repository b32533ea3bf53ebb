"""Reads YAML, whoever wrote it: what cannot be meant is refused, and little memory is used."""

import math
import os
import re
import select
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from holdfast.errors import SettingsError
from holdfast.model.text import printable
from holdfast.settings.types import MOST_SHOWN

_MOST_BYTES = 1 << 20
"""A ConfigMap holds no more."""
_MOST_VALUES = 50_000
"""Keys and values of one file, each as often as aliases repeat it."""
_MOST_DEEP = 100
"""How deep they are in each other; of aliases a short file makes thousands of levels."""
_PART = 1 << 16
_PATIENCE = 5_000
"""Milliseconds that a pipe may keep its reader waiting: nobody may ever write to it."""
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = frozenset({"tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value"})
"""What a date is to YAML 1.1, and `=`."""


def read_mapping(file: Path) -> dict[str, Any]:
    """Return what *file* says, empty where it says nothing; raise SettingsError with the reason."""
    return mapping(read_text(file), str(file))


def read_text(file: Path) -> str:
    """Return the text of *file*; raise SettingsError with the reason."""
    try:
        return _read(file).decode("utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"cannot read {file}: {error}") from error


def mapping(text: str, file: str) -> dict[str, Any]:
    """Return what the *text* of *file* says; raise SettingsError with the reason."""
    try:
        content = parse(text)
    except ValueError as error:
        raise SettingsError(f"cannot read {file}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"cannot use {file}: it must be a mapping of keys to values")
    return content


def parse(text: str) -> object:
    """Return what *text* of YAML says; raise ValueError with the line and the reason."""
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{where}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _read(file: Path) -> bytes:
    """Return the bytes of *file*; raise OSError, or ValueError where they are too many."""
    content = b""
    # To open a pipe that nobody writes to would block without end.
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        ready = select.poll()
        ready.register(fd, select.POLLIN)
        while ready.poll(_PATIENCE):
            part = os.read(fd, _PART)
            if not part:
                return content
            content += part
            if len(content) > _MOST_BYTES:
                raise ValueError(f"it is longer than {_MOST_BYTES} bytes")
    finally:
        os.close(fd)
    raise ValueError(f"nothing has been written to it for {_PATIENCE // 1000} s")


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, of which plain YAML would take the last.

    It also refuses what grows without bound when its aliases are followed.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[yaml.Node, int] = {}
        self._depths: dict[yaml.Node, int] = {}

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        """Return the tag of a value without one: what is text to Helm has no quotes and is text."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        text = tag in _TEXT or (tag in _NUMBERS and not _is_number(value))
        return self.DEFAULT_SCALAR_TAG if text else tag

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None or (alias and node in self._sizes):
            return node
        if alias:
            raise _refused("it contains itself", node)
        size = 1 + sum(self._sizes[each] for each in _children(node))
        if size > _MOST_VALUES:
            raise _refused(f"it has more than {_MOST_VALUES} values", node)
        self._depths[node] = 1 + max((self._depths[each] for each in _children(node)), default=0)
        if self._depths[node] > _MOST_DEEP:
            raise _refused("it is nested too deep", node)
        self._sizes[node] = size
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:  # noqa: FBT002 - PyYAML's signature
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()  # half of a surrogate pair is in no path and in no answer
        except (ArithmeticError, AttributeError, LookupError, ValueError) as error:
            # PyYAML does not ask whether a value fits its tag.
            kind = node.tag.rpartition(":")[2]
            text = printable(str(node.value), MOST_SHOWN)
            raise _refused(f"{text!r} is no {kind}", node) from error
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:  # noqa: FBT002 - PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refused(f"the key {key.value} is there twice", key)
                seen.add(key.value)
        found = dict(super().construct_mapping(node, deep))
        for key, _ in node.value:  # with those that it merges
            if not isinstance(self.construct_object(key, deep=True), str):
                raise _refused(
                    f"a key is not text: YAML reads {printable(str(key.value), MOST_SHOWN)} as "
                    "another type, as it does with numbers, on, off, yes and no; quote it",
                    key,
                )
        return found


# Helm and JSON write numbers so, and YAML 1.1 does not read them.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?[1-9]e[-+][0-9]+\Z"), [*"-123456789"]
)
# Where it is no key, nothing is merged.
_Loader.add_constructor(_MERGE, _Loader.construct_yaml_str)  # type: ignore[type-var]


def _is_number(text: str) -> bool:
    """Tell whether a number of YAML 1.1 is one to Helm as well: 64 bits or a float hold it."""
    with suppress(ValueError):
        if -(1 << 63) <= int(text, 0) < 1 << 64:
            return True
    with suppress(ValueError):
        return "_" not in text and math.isfinite(float(text))
    return False


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _refused(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
