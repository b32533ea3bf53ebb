"""What the documents promise of a combination: which devices pods are offered, and what they reach.

It is written from docs/nvidia.md, docs/configuration.md, docs/tpu.md and docs/dra.md, and shares no
code with the daemon. `foretold` is what kubelet has, `published` what the scheduler has; `run` holds
the daemon against them.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from matrix.space import DRA, EMPTY, GPU, PART, Choice

_MODEL = "NVIDIA H100 80GB HBM3"
_LONGEST = 63
_NVME, _H100, _SOUND = ("1234:0011", "010802"), ("10de:2330", "030200"), ("10de:22a3", "040300")
_Functions = tuple[tuple[str, str, str], ...]
_OF_FUNCTIONS: Mapping[str, Mapping[int, _Functions]] = {
    "": {},
    "whole": {40: (("0000:40:00.0", *_NVME),), 41: (("0000:40:00.1", *_NVME),)},
    "virtual": {41: (("0000:40:00.1", *_NVME),), 42: (("0000:40:00.2", *_NVME),)},
    "gpu": {60: (("0000:60:00.0", *_H100), ("0000:60:00.1", *_SOUND))},
}
"""Those of each IOMMU group. The card of virtual functions is not on VFIO."""
CHIPS = {
    "v2": 0x27,
    "v3": 0x27,
    "v4i": 0x56,
    "v4": 0x5E,
    "v5p": 0x62,
    "v5e": 0x63,
    "v6e": 0x6F,
    "tpu7x": 0x76,
}
"""The PCI id of each generation."""


class ViolationError(AssertionError):
    """A promise was not kept: the step, what was expected, and by which promise."""


class Thing(Struct, frozen=True, kw_only=True):
    """A piece of hardware as it is found. `path` is the node that its container has to reach."""

    kind: str
    id: str
    path: str
    functions: _Functions = ()
    """What is on VFIO: the address, `vendor:device` and the class."""
    names: tuple[tuple[str, str], ...]
    """By what rules of `devices` can match it: the key, and a text."""
    profile: str = ""
    in_mig_mode: bool = False


class Offer(Struct, frozen=True, kw_only=True):
    """A device that kubelet is to be offered, and by which names a container may be given it."""

    resource: str
    id: str
    path: str
    card: str
    """What of the resource it is: each replica is of one."""
    told: frozenset[str] = frozenset()
    shared: bool = False


def hardware(choice: Choice) -> Iterator[Thing]:
    """Yield what the node has that could be advertised, chips and functions first."""
    generation, count = choice["node.tpus"]
    groups = _groups(choice)
    for place in range(count):
        address = f"0000:00:{5 + place:02x}.0"
        slot, model = address.partition(".")[0], f"1ae0:{CHIPS[generation]:04x}"
        addresses = (address, f"{slot}.1") if generation == "tpu7x" else (address,)
        own = tuple((each, model, "120000") for each in addresses)
        accel = is_accel(generation)
        yield Thing(
            kind="tpu",
            # A chip of several functions is called by its slot.
            id=address if len(own) == 1 else slot,
            path=f"/dev/accel{place}" if accel else f"/dev/vfio/{groups[10 + place]}",
            functions=() if accel else own,
            names=_names(own, place if accel else groups[10 + place], generation),
        )
    for group, own in _OF_FUNCTIONS[choice["node.functions"]].items():
        yield Thing(
            kind="pool",
            id=own[0][0],
            path=f"/dev/vfio/{groups[group]}",
            functions=own,
            names=_names(own, groups[group], own[0][1]),
        )
    for place, layout in enumerate(choice["node.gpus"]):
        uuid, address = gpu_uuid(place), f"0000:{0x10 + place:02x}:00.0"
        index = gpu_index(choice, place)
        path = f"/dev/nvidia{index}"
        of_gpu = (("uuid", uuid), ("index", str(index)), ("pci", address))
        whole = Thing(
            kind="gpu",
            id=uuid,
            path=path,
            names=(*of_gpu, ("model", _MODEL)),
            in_mig_mode=layout != (),
        )
        yield whole
        for number, profile in enumerate(() if layout == EMPTY else layout):
            of_slice = (("uuid", slice_uuid(place, number)), ("index", f"{index}:{number}"))
            yield Thing(
                kind="slice",
                id=slice_uuid(place, number),
                path=path,
                names=(*of_gpu, *of_slice, ("model", f"{_MODEL} MIG {profile}")),
                profile=profile,
                in_mig_mode=True,
            )


def _groups(choice: Choice) -> dict[int, int]:
    """Return the number that each IOMMU group has: its own, or that of the next one."""
    chips = 0 if is_accel(choice["node.tpus"][0]) else choice["node.tpus"][1]
    own = [*range(10, 10 + chips), *_OF_FUNCTIONS[choice["node.functions"]]]
    return dict(zip(own, [*own[1:], 90] if choice["node.numbers"] else own, strict=False))


def gpu_index(choice: Choice, place: int) -> int:
    """Return which index and minor number the GPU at *place* has."""
    return len(choice["node.gpus"]) - 1 - place if choice["node.numbers"] else place


def is_of(thing: Thing, name: str) -> bool:
    """Tell whether *name* is how kubelet calls a device that is *thing*, or a share of it."""
    ids = (thing.id, *(address for address, *_ in thing.functions))
    return name.partition("::")[0] in ids or any(name.endswith(_plain(each)) for each in ids)


def shares(one: Thing, other: Thing) -> bool:
    """Tell whether they are the same hardware, or a GPU and one of its slices."""
    return one.id == other.id or (one.path == other.path and "gpu" in {one.kind, other.kind})


class Published(Struct, frozen=True, kw_only=True):
    """A device of a ResourceSlice: which of it a claim can have, one of `offers` each.

    `told` is its attribute `resource`.
    """

    name: str
    told: str
    offers: tuple[Offer, ...]


def foretold(choice: Choice) -> dict[str, tuple[Offer, ...]]:
    """Return what kubelet is to be offered, by resource."""
    return _offered(choice, "device-plugin")


def published(choice: Choice) -> dict[str, tuple[Published, ...]]:
    """Return what claims can have, by resource; boxes of chips are left out."""
    found: dict[str, tuple[Published, ...]] = {}
    for resource, offers in _offered(choice, DRA).items():
        ids = dict.fromkeys(each.card for each in offers)
        found[resource] = tuple(
            Published(
                # Shared or not, it is the same GPU or slice.
                name=_label(resource.removesuffix(".shared"), id_),
                told=attribute(resource),
                offers=tuple(each for each in offers if each.card == id_),
            )
            for id_ in ids
        )
    return found


def attribute(text: str) -> str:
    """Return what the API server takes of a text: docs/dra.md, at most 64 bytes."""
    return text[:64]


def shapes(choice: Choice) -> dict[str, int]:
    """Return the boxes that the chips make, each with how many there are; a host of 4 or of 8."""
    offers = _offered(choice, DRA).get(choice["tpu.resourceName"], ())
    count = len(offers) if len(offers) == choice["node.tpus"][1] else 0
    return {4: {"2x2": 1}, 8: {"2x2": 2, "2x4": 1}}.get(count, {}) if _flat(choice) else {}


def _flat(choice: Choice) -> bool:
    """Tell whether the generation is one of which docs/dra.md names boxes of two dimensions."""
    return choice["node.tpus"][0] in {"v5e", "v6e"}


def _label(resource: str, id_: str) -> str:
    """Return what a device is called: of a GPU or a slice by its UUID, of others by their place.

    A long name is cut to the 63 characters that the API server takes, with a digest of the whole.
    """
    kind, own = _plain(resource.rpartition("/")[2]), _plain(id_)
    name = own if own.startswith(f"{kind}-") else f"{kind}-{own}"
    if len(name) <= _LONGEST:
        return name
    return f"{name[:54].rstrip('-')}-{sha256(f'{resource}/{id_}'.encode()).hexdigest()[:8]}"


def _plain(text: str) -> str:
    return re.sub("[^a-z0-9]+", "-", text.lower())


def _offered(choice: Choice, api: str) -> dict[str, tuple[Offer, ...]]:
    """Return what comes to pods by *api*, by resource."""
    found: dict[str, list[Offer]] = {}
    named = list(_named(choice))
    kinds = {resource: _kind(thing) for thing, resource in named}
    for thing, resource in named:
        rule = _rule(choice, thing)
        if rule is not None and rule.get("exclude"):
            continue
        target = (rule or {}).get("resource") or resource
        if kinds.setdefault(target, _kind(thing)) != _kind(thing):
            continue  # docs/configuration.md: all devices of one name are of one kind
        told = {thing.id, *(text for key, text in thing.names if key == "index")}
        count, name = 1, target
        if thing.kind in {"gpu", "slice"} and target == resource:
            count, name = _shared(choice, resource)
        if _api(choice, name) != api:
            continue
        for number in range(count):
            id_ = thing.id if count == 1 else f"{thing.id}::{number}"
            found.setdefault(name, []).append(
                Offer(
                    resource=name,
                    id=id_,
                    path=thing.path,
                    card=thing.id,
                    told=frozenset(told),
                    shared=count > 1,
                )
            )
    return {resource: tuple(offers) for resource, offers in found.items()}


def _kind(thing: Thing) -> str:
    return "gpu" if thing.kind == "slice" else thing.kind


def labels(choice: Choice) -> dict[str, str]:
    """Return some of the labels that GPU feature discovery gives such a node."""
    gpus = [each for each in hardware(choice) if each.kind == "gpu"]
    if not (choice["labels.enabled"] and choice["gpu.enabled"] and gpus) or choice["devices"]:
        return {}
    found = {"nvidia.com/vgpu.present": "false", "nvidia.com/mps.capable": "false"}
    if choice["gpu.migStrategy"] == "mixed":
        for each in hardware(choice):
            if each.kind == "slice" and each.profile not in PART:
                profile = each.profile.replace("+", ".")
                resource = f"nvidia.com/mig-{profile}"
                count, name = _shared(choice, resource)
                mark = "-SHARED" if count > 1 and name == resource else ""
                model = _MODEL.replace(" ", "-")
                found[f"{resource}.product"] = f"{model}-MIG-{profile}{mark}"
                found[f"{resource}.replicas"] = str(count)
    return found


def _named(choice: Choice) -> Iterator[tuple[Thing, str]]:  # noqa: C901 - a table of cases
    """Yield what is advertised at all, under its own name."""
    things = list(hardware(choice))
    single = _single(choice)
    for thing in things:
        if thing.kind == "tpu" and choice["tpu.enabled"]:
            yield thing, choice["tpu.resourceName"]
        if thing.functions:
            yield from _in_pools(choice, thing)
        elif thing.kind not in {"gpu", "slice"} or not choice["gpu.enabled"]:
            continue
        elif choice["gpu.migStrategy"] == "none":
            if thing.kind == "gpu":
                yield thing, GPU
        elif choice["gpu.migStrategy"] == "single":
            kind = thing.profile if thing.kind == "slice" else ""
            if kind == single and (thing.kind == "slice" or not thing.in_mig_mode):
                yield thing, GPU
        elif thing.kind == "gpu" and not thing.in_mig_mode:
            yield thing, GPU
        elif thing.kind == "slice" and thing.profile not in PART:
            yield thing, f"nvidia.com/mig-{thing.profile.replace('+', '.')}"


def _single(choice: Choice) -> str | None:
    """Return the kind that most GPUs have; a tie is for the whole, then for what uses most."""
    votes: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for layout in choice["node.gpus"]:
        kinds = ("",) if layout == () else () if layout == EMPTY else layout
        votes.update(set(kinds))
        there.update(kinds)
    # With c before g: a part of an instance, of which the container has but its own slices.
    size = {kind: int(kind[0]) if kind else 0 for kind in votes}
    ranked = sorted(votes, key=lambda each: (-votes[each], each != "", -there[each] * size[each]))
    return ranked[0] if ranked else None


def _shared(choice: Choice, resource: str) -> tuple[int, str]:
    for each in choice["sharing.timeSlicing.resources"]:
        if each["name"] == resource:
            # NVIDIA's plugin takes `rename` back where renameByDefault is not set.
            ours = choice["node.by"] != "nvidia" and each.get("rename", "")
            renamed = choice["sharing.timeSlicing.renameByDefault"] or ours
            return each["replicas"], f"{resource}.shared" if renamed else resource
    return 1, resource


def _api(choice: Choice, resource: str) -> str:
    """Return by which API pods get *resource*: its section's, its rule's, or that of all."""
    owned = [(choice["tpu.resourceName"], choice["tpu.api"])] if choice["tpu.enabled"] else []
    owned += [(each["resourceName"], each.get("api", "device-plugin")) for each in choice["pools"]]
    if choice["gpu.enabled"] and resource.startswith((GPU, "nvidia.com/mig-")):
        owned.append((resource, choice["gpu.api"]))
    of_rule = [each.get("api") for each in choice["devices"] if each.get("resource") == resource]
    all_ = [choice[f"{kind}.api"] for kind in ("tpu", "gpu") if choice[f"{kind}.enabled"]]
    all_ += [each.get("api", "device-plugin") for each in choice["pools"]]
    return str(dict(owned).get(resource) or next(filter(None, of_rule), all_[0]))


def _names(functions: _Functions, index: int, model: str) -> tuple[tuple[str, str], ...]:
    return (*(("pci", each) for each, *_ in functions), ("index", str(index)), ("model", model))


def _in_pools(choice: Choice, thing: Thing) -> Iterator[tuple[Thing, str]]:
    """Yield a chip, or functions, as what the pools of each name make of it.

    What is in one IOMMU group is one device, of which the first that a pool takes has the name.
    """
    for name in dict.fromkeys(pool["resourceName"] for pool in choice["pools"]):
        if thing.kind == "tpu" and choice["tpu.enabled"] and name == choice["tpu.resourceName"]:
            continue
        pools = [pool for pool in choice["pools"] if pool["resourceName"] == name]
        taken = [each for each in thing.functions if any(_takes(pool, *each) for pool in pools)]
        if taken:
            address, model, _ = taken[0]
            index = int(thing.path.rpartition("/")[2])
            names = _names(tuple(taken), index, model)
            yield replace(thing, kind="pool", id=address, names=names), name


def _takes(pool: dict[str, Any], address: str, model: str, code: str) -> bool:
    """Tell whether a function matches one entry of each list that is not empty."""
    classes = [f"{each.lower().removeprefix('0x')}*" for each in pool.get("classes", ())]
    lists = (pool.get("devices"), model), (pool.get("addresses"), address), (classes, code)
    return all(any(_like(text, each) for each in list_) for list_, text in lists if list_)


def _like(text: str, pattern: str) -> bool:
    """Tell whether *text* matches: `*` and `?` alone stand for others, and cases are the same."""
    return fnmatchcase(text.lower(), pattern.lower().replace("[", "[[]"))


def _rule(choice: Choice, thing: Thing) -> dict[str, Any] | None:
    for rule in choice["devices"]:
        if all(
            any(name == key and _like(text, str(pattern)) for name, text in thing.names)
            for key, pattern in rule["match"].items()
            if pattern is not None
        ):
            return dict(rule)
    return None


def is_accel(generation: str) -> bool:
    """Tell whether such chips come with a driver of their own, and not with VFIO."""
    return generation in {"v2", "v3", "v4i", "v4"}


def gpu_uuid(place: int) -> str:
    """Return what the stub of NVML calls a GPU."""
    return f"GPU-{place:08x}-0000-4000-8000-000000000000"


def slice_uuid(place: int, number: int) -> str:
    """Return what the stub of NVML calls a slice."""
    return f"MIG-{place:04x}{number:04x}-0000-4000-8000-000000000000"
