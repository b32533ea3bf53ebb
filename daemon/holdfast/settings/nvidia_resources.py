"""Translates the resources of NVIDIA's file, which name GPUs by their model, to rules for devices.

NVIDIA's plugin has the keys and ignores them with a warning. Here they mean what it documents: the
first pattern that a GPU's name, or a slice's profile, matches gives it its resource.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.errors import SettingsError
from holdfast.settings.hardware import GPU_NAME

_PREFIX = "nvidia.com/"
_KINDS = ("gpus", "mig")
_KEYS = ("pattern", "name")


def rules_from(content: Mapping[str, object], file: str) -> list[dict[str, Any]]:
    """Return the entries of `devices` that mean what the resources in *content* say.

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
        # Only * stands for other characters there.
        pattern = pattern.replace("[", "[[]").replace("?", "[?]")
        yield pattern, name if "/" in name else _PREFIX + name
