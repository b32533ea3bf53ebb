"""Translates what NVIDIA's file names: the resources of devices, and those that are shared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import SettingsError
from holdfast.settings.hardware import GPU_NAME, SLICE_NAMES
from holdfast.settings.nvidia_plugin import IDLE

_PREFIX = "nvidia.com/"
_KINDS = ("gpus", "mig")
_KEYS = ("pattern", "name")


def rules_from(content: Mapping[str, object], file: str) -> list[dict[str, Any]]:
    """Return the entries of `devices` that mean what the resources in *content* say.

    NVIDIA's plugin has the keys and ignores them with a warning. Here they mean what it documents:
    the first pattern that a GPU's name, or a slice's profile, matches gives it its resource.
    None where all GPUs keep their own name. Raises SettingsError.
    """
    lists: dict[str, object] = {}
    for key, section in content.items():
        if key.lower() == "resources" and isinstance(section, Mapping):
            lists |= {str(each).lower(): value for each, value in section.items()}
    for key in lists.keys() - _KINDS:
        raise SettingsError(
            f"cannot use resources.{key} in {file}: NVIDIA's plugin has no such key; use "
            f"resources.{' or resources.'.join(_KINDS)}"
        )
    slices = list(_entries(lists.get("mig"), f"resources.mig in {file}"))
    whole = list(_entries(lists.get("gpus"), f"resources.gpus in {file}"))
    if not slices and all(name == GPU_NAME for _, name in whole):
        return []
    rules = [_rule(f"* MIG {pattern}", name) for pattern, name in slices]
    # A GPU's pattern is for whole GPUs alone.
    rules.append({"match": {"model": "* MIG *"}})
    return rules + [_rule(pattern, name) for pattern, name in whole]


def _rule(model: str, resource: str) -> dict[str, Any]:
    # Nothing but GPUs and slices has a UUID.
    return {"match": {"model": model, "uuid": "*"}, "resource": resource}


def _entries(value: object, where: str) -> Iterator[tuple[str, str]]:
    """Yield each pattern, as ours are written, with the resource's full name."""
    if value is None:
        return
    entries: Sequence[object] = value if isinstance(value, list) else [value]
    for each in entries:
        mapping = each if isinstance(each, Mapping) else {}
        found = {str(key).lower(): text for key, text in mapping.items()}
        texts = [text for key in _KEYS if isinstance(text := found.get(key), str) and text]
        if len(texts) != len(_KEYS) or len(found) != len(_KEYS):
            raise SettingsError(
                f"cannot use {where}: {each!r} is not a pattern with a name; write each entry as "
                "{pattern: '*A100*', name: a100}"
            )
        pattern, name = texts
        # Only * stands for other characters there, and no GPU's name has a question mark.
        if "?" not in pattern:
            yield pattern, name if "/" in name else _PREFIX + name


def shared_of(entries: Sequence[object], file: str, told: Callable[[str], None]) -> list[object]:
    """Return *entries* of the resources that *file* shares as ours are written.

    One file is for all nodes, so what can be shared on none is left out, as NVIDIA's plugin leaves
    out what a node does not have. Of a name that is there twice the first counts. *told* is called
    with a text for each that has no effect. Raise SettingsError where only some devices are to be
    shared.
    """
    found: dict[str, object] = {}
    for place, given in enumerate(entries):
        where = f"sharing.timeSlicing.resources[{place}]"
        name = given.get("name") if isinstance(given, Mapping) else None
        if not isinstance(given, Mapping) or not isinstance(name, str):
            found[where] = given  # which is no entry, and is refused as in our own file
            continue
        name = name if "/" in name else _PREFIX + name
        entry = {**given, "name": name}
        if name in found:
            told(_idle(f"{where} in {file}", "the first entry with this name counts"))
            continue
        if name.startswith(_PREFIX) and name != GPU_NAME and not name.startswith(SLICE_NAMES):
            told(_idle(f"{where} in {file}", f"there is no {name} that can be shared"))
            continue
        if not isinstance(entry.get("devices", "all"), str):
            raise SettingsError(
                f"cannot use {where}.devices in {file}: NVIDIA's plugin ignores it and shares all "
                "devices, and here none is shared that the file leaves out; write all, or leave it "
                "out"
            )
        if entry.pop("rename", None):
            which = "renameByDefault alone decides what replicas are called"
            told(_idle(f"{where}.rename in {file}", which))
        found[name] = entry
    return list(found.values())


def _idle(where: str, why: str) -> str:
    return f"{where} {IDLE}: {why}; leave it out"
