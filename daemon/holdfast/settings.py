"""The configuration as one frozen value: a YAML file, overridden by environment, then by flags."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast, get_origin, get_type_hints

import msgspec
import yaml

from holdfast.errors import SettingsError
from holdfast.model.ids import ResourceName
from holdfast.model.pools import PoolSpec

_PREFIX = "HOLDFAST_"
_LONGEST_GATE = 28.0  # seconds: kubelet's 30, less the time to answer
_LAST_PORT = 65535
_PART = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(float):
    """A length of time in seconds; written ``250ms``, ``30s``, ``1h30m`` or as a number."""

    __slots__ = ()

    @classmethod
    def parse(cls, given: object) -> "Duration":
        """Return what *given* says; raise ValueError with what would be right."""
        if isinstance(given, bool) or not isinstance(given, (int, float, str)):
            message = "expected a duration such as 30s or 250ms"
            raise ValueError(message)  # noqa: TRY004 - msgspec takes ValueError alone for bad input
        if isinstance(given, str):
            parts = _PART.findall(given)
            if not parts or "".join(number + unit for number, unit in parts) != given:
                message = f"expected a duration such as 30s or 250ms, got {given!r}"
                raise ValueError(message)
            return cls(sum(float(number) * _UNITS[unit] for number, unit in parts))
        if given < 0:
            message = f"expected a duration, got {given}, which is negative"
            raise ValueError(message)
        return cls(given)


class _Section(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"
):
    """The rules that all sections share: unknown keys are refused, names are camelCase."""


class Host(_Section, frozen=True):
    """Where the host's folders are, as this process sees them."""

    sys: str = "/sys"
    proc: str = "/proc"
    dev: str = "/dev"
    cgroup: str = "/sys/fs/cgroup"
    etc: str = "/etc"


class Question(_Section, frozen=True):
    """How often kubelet is asked which pods it counts (List has effects and a rate limit)."""

    min_interval: Duration = Duration(1)
    idle_interval: Duration = Duration(60)
    settle: Duration = Duration(1)
    """How long after others made kubelet write its checkpoint."""
    timeout: Duration = Duration(5)


class Kubelet(_Section, frozen=True):
    """Where kubelet is. Its plugin folder does not follow its --root-dir."""

    plugin_dir: str = "/var/lib/kubelet/device-plugins"
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    socket_prefix: str = "holdfast"
    register_timeout: Duration = Duration(12)
    """Above the 10 s that kubelet takes to dial back."""
    poll: Duration = Duration(1)
    """How often the plugin folder is looked at, besides inotify."""
    question: Question = msgspec.field(default_factory=Question)


class Tpu(_Section, frozen=True):
    """TPU chips, and what their programs are told; empty values come from envFile or hardware."""

    enabled: bool = True
    resource_name: str = "google.com/tpu"
    generation: str = ""
    topology: str = ""
    accelerator_type: str = ""
    worker_id: int | None = None
    worker_hostnames: tuple[str, ...] = ()
    env_file: str = ""
    """Empty: tpu/tpu-env in host.etc."""
    vbar_url: str = ""


class Pool(_Section, frozen=True):
    """VFIO devices that are advertised; a function must match each list that is not empty."""

    resource_name: str
    devices: tuple[str, ...] = ()
    """``vendor:device`` in hex, with ``*`` and ``?``."""
    classes: tuple[str, ...] = ()
    """Beginnings of the PCI class, such as ``0302``."""
    addresses: tuple[str, ...] = ()
    """Patterns of PCI addresses, such as ``0000:3b:*``."""

    def spec(self) -> PoolSpec:
        """Return the rule that discovery goes by."""
        return PoolSpec(
            resource=ResourceName(self.resource_name),
            devices=self.devices,
            classes=self.classes,
            addresses=self.addresses,
        )


class Discovery(_Section, frozen=True):
    """How the hardware is followed."""

    rescan: Duration = Duration(60)
    held_check: Duration = Duration(1)
    debounce: Duration = Duration(0.02)


class Allocate(_Section, frozen=True):
    """Allocate answers in any case; this is how long it waits to have it on disk."""

    commit_timeout: Duration = Duration(2)
    pending_timeout: Duration = Duration(60)
    """After this an Allocation that no checkpoint entry names is over."""


class Gate(_Section, frozen=True):
    """PreStartContainer. Kubelet gives up after 30 s."""

    wait: Duration = Duration(25)
    poll: Duration = Duration(0.25)
    exclusive_open: bool = True
    caller_lookup: Duration = Duration(1)


class Retry(_Section, frozen=True):
    """How long a quarantined device waits for the next try, doubling from first to last."""

    first: Duration = Duration(5)
    last: Duration = Duration(300)


class Reclaim(_Section, frozen=True):
    """What may be done about a process that outlives its pod on a device."""

    mode: Literal["observe", "terminate"] = "observe"
    let_go_grace: Duration = Duration(30)
    """From kubelet's letting go of the pod."""
    orphan_grace: Duration = Duration(30)
    """From then on, and from the runtime's letting go."""
    term_grace: Duration = Duration(10)
    kill_grace: Duration = Duration(10)
    retry: Retry = msgspec.field(default_factory=Retry)
    poll: Duration = Duration(1)
    release_poll: Duration = Duration(0.2)
    foreign_scan: Duration = Duration(60)
    unseen_grace: Duration = Duration(30)
    """For a pod whose cgroup was never seen."""


class History(_Section, frozen=True):
    """How much of each device's story is kept."""

    per_device: int = 200


class Http(_Section, frozen=True):
    """Probes and metrics; port 0 turns them off."""

    address: str = ""
    port: int = 8008


class Log(_Section, frozen=True):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"


class Liveness(_Section, frozen=True):
    """When a restart would mend something."""

    loop_stall: Duration = Duration(30)


class Settings(_Section, frozen=True):
    """Everything that can be set; durations are in seconds."""

    state_dir: str = "/var/lib/holdfast"
    withhold_after: Duration = Duration(30)
    """How long a device may be RELEASING before kubelet is told that it is Unhealthy."""
    host: Host = msgspec.field(default_factory=Host)
    kubelet: Kubelet = msgspec.field(default_factory=Kubelet)
    tpu: Tpu = msgspec.field(default_factory=Tpu)
    pools: tuple[Pool, ...] = ()
    discovery: Discovery = msgspec.field(default_factory=Discovery)
    allocate: Allocate = msgspec.field(default_factory=Allocate)
    gate: Gate = msgspec.field(default_factory=Gate)
    reclaim: Reclaim = msgspec.field(default_factory=Reclaim)
    history: History = msgspec.field(default_factory=History)
    http: Http = msgspec.field(default_factory=Http)
    log: Log = msgspec.field(default_factory=Log)
    liveness: Liveness = msgspec.field(default_factory=Liveness)


Tree = dict[str, Any]


def load(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings of *file*, changed by HOLDFAST_… variables, then by *overrides*.

    *overrides* are by path, as ``gate.wait``. Raises SettingsError naming the path of the key.
    """
    tree = _read(file) if file is not None else {}
    paths = known_paths()
    by_variable = {_variable(path): path for path in paths}
    for name, text in environ.items():
        if name.startswith(_PREFIX):
            path = by_variable.get(name)
            if path is None:
                message = f"cannot use the environment variable {name}: {_hint(name, by_variable)}"
                raise SettingsError(message)
            _put(tree, path, text)
    for path, text in (overrides or {}).items():
        if path not in paths:
            message = f"cannot set {path}: {_hint(path, paths)}"
            raise SettingsError(message)
        _put(tree, path, text)
    return convert(tree)


def convert(tree: Mapping[str, Any]) -> Settings:
    """Return *tree* as settings; raise SettingsError naming the path of what is wrong."""
    try:
        settings = msgspec.convert(tree, Settings, dec_hook=_duration)
    except msgspec.ValidationError as error:
        raise SettingsError(f"cannot use the configuration: {_explain(str(error))}") from error
    _check(settings)
    return settings


def plain(settings: Settings) -> Tree:
    """Return *settings* as YAML and JSON can show them."""
    return cast("Tree", msgspec.to_builtins(settings, enc_hook=float))


def known_paths(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> dict[str, type]:
    """Return the path of each single value, as ``gate.wait``, with its type."""
    hints = get_type_hints(struct)
    found: dict[str, type] = {}
    for field in msgspec.structs.fields(struct):
        path, kind = prefix + field.encode_name, hints[field.name]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            found |= known_paths(kind, f"{path}.")
        else:
            found[path] = kind
    return found


def _read(file: Path) -> Tree:
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {file}: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"cannot use {file}: it must be a mapping of keys to values")
    return content


def _put(tree: Tree, path: str, text: str) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        child = tree.get(parent)
        if not isinstance(child, dict):
            child = {}
            tree[parent] = child
        tree = child
    tree[last] = _value(text, known_paths()[path])


def _value(text: str, kind: object) -> object:
    """Return what *text* means for a key of type *kind*: YAML, but a string stays a string."""
    if kind is str or get_origin(kind) is Literal:
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _variable(path: str) -> str:
    return _PREFIX + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", path).replace(".", "_").upper()


def _hint(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no such key; did you mean {near[0]}?" if near else "there is no such key"


def _explain(text: str) -> str:
    """Say which key msgspec's message means, and which one may have been meant."""
    what, _, where = text.partition(" - at `$")
    path = where.rstrip("`").removeprefix(".")
    unknown = re.fullmatch(r"Object contains unknown field `(?P<key>.*)`", what)
    if unknown is None:
        return f"{path or 'the top level'}: {what}"
    full = f"{path}.{unknown['key']}" if path else unknown["key"]
    sections = {each.rpartition(".")[0]: None for each in known_paths()}
    return f"{full}: {_hint(full, {**known_paths(), **sections})}"


def _check(settings: Settings) -> None:
    """Refuse what is well formed and cannot work."""
    for place, pool in enumerate(settings.pools):
        for problem in pool.spec().problems():
            raise SettingsError(f"cannot use the configuration: pools[{place}].{problem}")
    if settings.gate.wait > _LONGEST_GATE:
        raise SettingsError("cannot use the configuration: gate.wait: kubelet gives up after 30 s")
    if not 0 <= settings.http.port <= _LAST_PORT:
        raise SettingsError(f"cannot use the configuration: http.port: {settings.http.port}")
    plugin_dir, state_dir = Path(settings.kubelet.plugin_dir), Path(settings.state_dir)
    if plugin_dir == state_dir or plugin_dir in state_dir.parents:
        raise SettingsError(
            "cannot use the configuration: stateDir: kubelet may clean its plugin folder; choose "
            "another place"
        )
    if not settings.tpu.enabled and not settings.pools:
        raise SettingsError(
            "cannot use the configuration: tpu.enabled: nothing is left to advertise; name a pool"
        )


def _duration(kind: type, given: object) -> object:
    if kind is Duration:
        return Duration.parse(given)
    message = f"cannot read a {kind.__name__}"
    raise NotImplementedError(message)
