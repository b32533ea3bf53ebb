"""The objects of a cluster with their versions, as an API server keeps and watches them."""

import copy
import itertools
import json
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from simulated.cluster.rules import InvalidError, Rules

Object = dict[str, Any]

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_RANDOM, _MOST_PREFIX = 5, 248
"""Characters of a name that was made: those at its end, and those that it may begin with."""
_NO_GENERATION = frozenset({"resourceclaims", "resourceclaimtemplates", "nodes", "events"})
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "generation", "namespace")
"""What no client changes in the metadata of an object."""
_FIRST_STATUS: Mapping[str, Mapping[str, Any]] = {
    "resourceclaims": {},
    "pods": {"phase": "Pending", "qosClass": "BestEffort"},
}
"""What a new object has in place of the status that was sent, by the plural of its kind."""
_GRACE = 30
"""Seconds that a pod has to end, where nobody says how many."""
_SELECTABLE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "resourceslices": {
        "spec.driver": ("spec", "driver"),
        "spec.nodeName": ("spec", "nodeName"),
    },
    "pods": {"spec.nodeName": ("spec", "nodeName")},
}


class RefusedError(Exception):
    """A request is answered with a Status: the HTTP code, the reason, and the message."""

    def __init__(
        self, code: int, reason: str, message: str, *, after: int | None = None, name: str = ""
    ) -> None:
        """Refuse *name*; *after* how many seconds the client may come again."""
        super().__init__(message)
        self.code, self.reason, self.message, self.after = code, reason, message, after
        self.name = name


class Kind(Struct, frozen=True, kw_only=True):
    """A resource of the API: ``resource.k8s.io/v1``, ``resourceslices``; the core has no group."""

    group_version: str
    plural: str

    @property
    def group(self) -> str:
        """Return the API group, empty for the core."""
        return self.group_version.rpartition("/")[0]

    @property
    def qualified(self) -> str:
        """Return the name that messages use."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Place(Struct, frozen=True, kw_only=True):
    """Where an object is: its kind, its namespace (empty: none), and its name."""

    kind: Kind
    namespace: str = ""
    name: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """One line of the log that watches read. `before` is None for a new object."""

    version: int
    place: Place
    deleted: bool
    now: Object
    before: Object | None


class Selector(Struct, frozen=True, kw_only=True):
    """A field selector: the values that fields must have."""

    wanted: tuple[tuple[tuple[str, ...], str], ...] = ()

    @classmethod
    def of(cls, text: str, plural: str) -> "Selector":
        """Parse ``field=value,field=value``; raise RefusedError where *plural* has no such field."""
        wanted = []
        for part in filter(None, text.split(",")):
            field, _, value = part.replace("==", "=").partition("=")
            known = {
                "metadata.name": ("metadata", "name"),
                "metadata.namespace": ("metadata", "namespace"),
                **_SELECTABLE.get(plural, {}),
            }
            if field not in known:
                raise RefusedError(400, "BadRequest", f"field label not supported: {field}")
            wanted.append((known[field], value))
        return cls(wanted=tuple(wanted))

    def matches(self, found: Object | None) -> bool:
        """Tell whether *found* has all those values."""
        return found is not None and all(_at(found, path) == value for path, value in self.wanted)


def _at(found: Object, path: tuple[str, ...]) -> str:
    value: Any = found
    for each in path:
        value = value.get(each, {}) if isinstance(value, dict) else {}
    return value if isinstance(value, str) else ""


class Store:
    """The objects, the log of their changes, and one version that grows with each of them.

    Safe for many threads. `changed` is notified at each change and at `stir`.
    """

    def __init__(self, rules: Rules, validate: Callable[[Object], None] | None = None) -> None:
        """Keep what *rules* let pass; *validate* raises for what no schema allows."""
        self.rules = rules
        self.changed = threading.Condition(threading.RLock())
        self.compacted = 0
        """Watches and pages from versions below this one are too old."""
        self.bookmarks = 0
        """Grows when watches are to be sent a bookmark."""
        self.ended = 0
        """Grows when all watches are to end."""
        self._validate = validate
        self._objects: dict[Place, Object] = {}
        self._log: list[Change] = []
        self._versions = itertools.count(1000)
        self.version = next(self._versions)
        self.writes: list[tuple[str, Place]] = []
        """Each write that was carried out: the verb, and where."""

    def create(self, place: Place, sent: Object, *, dry_run: bool = False) -> Object:
        """Store a new object; *place* has no name, it is in what was *sent*.

        With *dry_run* only say what would be stored.
        """
        with self.changed:
            made = self._checked(place.kind, _named(sent))
            metadata = made["metadata"]
            at = Place(kind=place.kind, namespace=place.namespace, name=metadata["name"])
            if at in self._objects:
                text = f'{at.kind.qualified} "{at.name}" already exists'
                raise RefusedError(409, "AlreadyExists", text)
            if place.namespace:
                metadata["namespace"] = place.namespace
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            if at.kind.plural not in _NO_GENERATION:
                metadata["generation"] = 1
            if at.kind.plural in _FIRST_STATUS:
                made["status"] = {**_FIRST_STATUS[at.kind.plural]}
            if dry_run:
                return made
            self._put(at, made, None)
            self.writes.append(("create", at))
            return copy.deepcopy(made)

    def get(self, place: Place) -> Object:
        """Return an object."""
        with self.changed:
            return copy.deepcopy(self._there(place))

    def update(self, place: Place, sent: Object, *, subresource: str = "") -> Object:
        """Replace an object, or only its status."""
        with self.changed:
            before = self._there(place)
            made = self._checked(place.kind, sent)
            if subresource:
                made = {**copy.deepcopy(before), subresource: made.get(subresource)}
                made["metadata"] = {**before["metadata"], **_version_in(sent)}
            metadata = made.setdefault("metadata", {})
            if metadata.get("name") != place.name:
                raise RefusedError(
                    400, "BadRequest", "the name of the object does not match the URL"
                )
            if metadata.get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
                raise self._conflict(place, "Precondition failed: UID in precondition")
            if metadata.get("resourceVersion", "") != before["metadata"]["resourceVersion"]:
                raise self._conflict(place, "the object has been modified; please apply your")
            with _refusing(place.kind, made):
                self.rules.check_change(before, made)
            for kept in _KEPT:
                if kept in before["metadata"]:
                    metadata[kept] = before["metadata"][kept]
            if made == before:  # a write that changes nothing keeps the version
                return copy.deepcopy(before)
            if made.get("spec") != before.get("spec") and "generation" in metadata:
                metadata["generation"] += 1
            self._put(place, made, before)
            self.writes.append(("update", place))
            if before["metadata"].get("finalizers") and "deletionTimestamp" in metadata:
                self._remove(place, made)
            return copy.deepcopy(made)

    def patch(self, place: Place, sent: Object, *, subresource: str) -> Object:
        """Merge what was *sent* into an object's status, conditions by their type."""
        with self.changed:
            made = copy.deepcopy(self._there(place))
            if not (patch := sent.get(subresource, {})):
                return made
            into = made.setdefault(subresource, {})
            conditions = {each["type"]: each for each in into.get("conditions", ())}
            for each in patch.get("conditions", ()):
                conditions[each["type"]] = conditions.get(each["type"], {}) | each
            into |= patch | ({"conditions": [*conditions.values()]} if conditions else {})
            return self.update(place, made, subresource=subresource)

    def delete(
        self,
        place: Place,
        preconditions: Mapping[str, str] | None = None,
        *,
        grace: int | None = None,
    ) -> Object:
        """Remove an object; one with finalizers only gets a deletion timestamp.

        So does a pod on a node, which kubelet deletes without *grace* seconds once it is over.
        """
        with self.changed:
            found = self._there(place)
            for field, value in (preconditions or {}).items():
                if value and found["metadata"][field] != value:
                    raise self._conflict(place, f"Precondition failed: {field} in precondition")
            self.writes.append(("delete", place))
            if place.kind.plural == "pods":
                seconds = 0 if _needs_no_grace(found) else _GRACE if grace is None else grace
                found = self._put_ending(place, found, deletionGracePeriodSeconds=seconds)
                if seconds:
                    return found
            return self._remove(place, found)

    def delete_collection(self, place: Place, selector: Selector) -> int:
        """Remove all that *selector* matches; return how many."""
        with self.changed:
            found = list(self._matching(place, selector))
            for at, each in found:
                self._remove(at, each)
            return len(found)

    def find(self, place: Place, selector: Selector) -> tuple[list[Object], int]:
        """Return what *selector* matches, in order of the names, and the version of the list."""
        with self.changed:
            found = sorted(self._matching(place, selector), key=lambda each: _key(each[0]))
            return [copy.deepcopy(each) for _, each in found], self.version

    def every(self, kind: Kind) -> list[Object]:
        """Return all objects of *kind*, in order of their names."""
        return self.find(Place(kind=kind), Selector())[0]

    def since(self, version: int) -> list[Change]:
        """Return the changes after *version*; raise RefusedError when some of them are forgotten."""
        with self.changed:
            if version < self.compacted:
                text = f"too old resource version: {version} ({self.compacted})"
                raise RefusedError(410, "Expired", text)
            return [each for each in self._log if each.version > version]

    def compact(self) -> None:
        """Forget every change so far."""
        with self.changed:
            self.compacted, self._log = self.version, []

    def stir(self) -> None:
        """Have every watch be sent a bookmark."""
        with self.changed:
            self.bookmarks += 1
            self.changed.notify_all()

    def end_watches(self) -> None:
        """End every watch in the orderly way."""
        with self.changed:
            self.ended += 1
            self.changed.notify_all()

    def _checked(self, kind: Kind, sent: Object) -> Object:
        made: Object = self.rules.without_dropped(json.loads(json.dumps(sent)))
        with _refusing(kind, made):
            if not made.get("metadata", {}).get("name"):
                raise InvalidError(
                    "metadata.name: Required value: name or generateName is required"
                )
            self.rules.check(made)
            if self._validate is not None:
                self._validate(made)
        return made

    def _there(self, place: Place) -> Object:
        found = self._objects.get(place)
        if found is None:
            text = f'{place.kind.qualified} "{place.name}" not found'
            raise RefusedError(404, "NotFound", text, name=place.name)
        return found

    def _matching(self, place: Place, selector: Selector) -> Iterator[tuple[Place, Object]]:
        for at, each in list(self._objects.items()):
            here = at.kind == place.kind and place.namespace in {"", at.namespace}
            if here and selector.matches(each):
                yield at, each

    def _remove(self, place: Place, found: Object) -> Object:
        if found["metadata"].get("finalizers"):
            return self._put_ending(place, found)
        made = copy.deepcopy(found)
        del self._objects[place]
        self._note(place, made, found, deleted=True)
        return made

    def _put_ending(self, place: Place, found: Object, **metadata: int) -> Object:
        ending = copy.deepcopy(found)
        ending["metadata"] = {"deletionTimestamp": now(), **ending["metadata"], **metadata}
        if ending != found:
            self._put(place, ending, found)
        return copy.deepcopy(ending)

    def _put(self, place: Place, made: Object, before: Object | None) -> None:
        self._note(place, made, before, deleted=False)
        self._objects[place] = made

    def _note(self, place: Place, made: Object, before: Object | None, *, deleted: bool) -> None:
        self.version = next(self._versions)
        made["metadata"]["resourceVersion"] = str(self.version)
        self._log.append(
            Change(
                version=self.version,
                place=place,
                deleted=deleted,
                now=copy.deepcopy(made),
                before=copy.deepcopy(before),
            )
        )
        self.changed.notify_all()

    @staticmethod
    def _conflict(place: Place, why: str) -> RefusedError:
        text = f'Operation cannot be fulfilled on {place.kind.qualified} "{place.name}": {why}'
        return RefusedError(409, "Conflict", text)


@contextmanager
def _refusing(kind: Kind, made: Object) -> Iterator[None]:
    """Answer as an API server does to *made* when it is not valid."""
    try:
        yield
    except InvalidError as error:
        what = ".".join(filter(None, (made.get("kind"), kind.group)))
        name = made.get("metadata", {}).get("name", "")
        text = f'{what} "{name}" is invalid: {error}'
        raise RefusedError(422, "Invalid", text) from error


def _named(sent: Object) -> Object:
    """Return *sent* with a name, if it has what one is to begin with."""
    metadata = sent.get("metadata") or {}
    prefix = metadata.get("generateName")
    if metadata.get("name") or not prefix:
        return sent
    end = "".join(secrets.choice(_LETTERS) for _ in range(_RANDOM))
    return {**sent, "metadata": {**metadata, "name": prefix[:_MOST_PREFIX] + end}}


def _needs_no_grace(pod: Object) -> bool:
    """Tell whether there is no kubelet that has to end *pod*."""
    phase = (pod.get("status") or {}).get("phase")
    return not pod["spec"].get("nodeName") or phase in {"Succeeded", "Failed"}


def _version_in(sent: Object) -> Object:
    version = sent.get("metadata", {}).get("resourceVersion")
    return {"resourceVersion": version} if version else {}


def _key(place: Place) -> tuple[str, str]:
    return place.namespace, place.name


def now() -> str:
    """Return the time as objects have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
