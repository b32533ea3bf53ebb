"""Values that cannot be right are refused before anything is installed, by the path of their key."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chart.keys import groups
from chart.rendering import CHART, RefusedError, objects, render, settings
from chart.theirs import VALUES
from chart.valuesschema import DOCUMENTS, values_schema
from fakes.refusedsettings import REFUSED, TAKEN, tree
from holdfast.errors import SettingsError
from holdfast.settings import Settings, convert, known_paths, plain, validation
from holdfast.settings.reloading import TakeUp, take_up
from holdfast.settings.types import entry_of


def _at(path: str, value: object) -> dict[str, Any]:
    """Return *value* at *path*."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


_BAD = r"""
{confg: {}} | 'confg' not allowed
{image.tagg: '1'} | 'tagg' not allowed
{config.gate.wiat: 1s} | /config/gate': additional properties 'wiat'
{config.gate.wait: soon} | /config/gate/wait
{config.gate.wait: null} | /config/gate/wait
{config.gate: null} | /config/gate'
{config.http.port: 65536} | /config/http/port
{config.reclaim.mode: kill} | /config/reclaim/mode
{config.stateDir: var/lib/holdfast} | /config/stateDir
{config.gpu.devRoot: /} | /config/gpu/devRoot
{config.host.proc: /host/proc} | 'proc' not allowed
{config.pools: [{resourceName: a.b/c, device: [x]}]} | /config/pools/0
{config.pools: [{devices: ['1b36:0010']}]} | /config/pools/0
{image.digest: latest} | /image/digest
{updateStrategy.rollingUpdate.maxSurge: 1} | /updateStrategy/rollingUpdate/maxSurge
{runtimeFolders: [run/containerd]} | /runtimeFolders/0
{appArmor: 'off'} | /appArmor
{probes.liveness.periodSeconds: 0} | /probes/liveness/periodSeconds
{runtimeClasses.kata: {}} | 'kata' not allowed
{podLabels: {a: 1}} | /podLabels/a
{extraEnv: [{name: HOLDFAST_RECLAIM_MODE, value: terminate}]} | extraEnv: .*HOLDFAST_RECLAIM_MODE.*; set config.reclaim.mode
{extraEnv: [{name: MIG_STRATEGY, value: mixed}]} | extraEnv: .*MIG_STRATEGY.*; set config.gpu.migStrategy
{extraEnv: [{name: HOLDFAST_NONSENSE}]} | there is no setting .*HOLDFAST_NONSENSE
{extraEnv: [{name: A, valu: b}]} | /extraEnv/0': additional properties 'valu'
{extraEnv: [{value: b}]} | /extraEnv/0': missing property 'name'
{migStrategy: mixed} | migStrategy: .*NVIDIA's .*; set config.gpu.migStrategy
{compatWithCPUManager: true} | compatWithCPUManager: .*config.gpu.passDeviceSpecs
{gfd.enabled: true} | gfd: .*config.labels.enabled
{config.map: {a: [b]}} | /config/map/a
{config: {map: {a: ''}, name: b}} | config.map: config.name names another
{config.map: {no such: ''}} | /config/map.*'no such' not allowed
{config.default: a} | config.default.*there are no documents; set config.map
{config.fallbackStrategies: [last]} | /config/fallbackStrategies/0
{config.named.folder: /srv} | 'folder' not allowed
{config.pools: [{resourceName: foo, devices: ['*:*']}]} | /config/pools/0/resource
{config.pools: [{resourceName: a.b/c}]} | (?s)/config/pools/0.*'devices'.*'addresses'
{config.pools: [{resourceName: a.b/c, devices: []}]} | /config/pools/0
{config.pools: [{resourceName: a.b/c, devices: ['8086']}]} | /config/pools/0/devices/0
{config.tpu.resourceName: tpu} | /config/tpu/resourceName
{config.tpu.generation: v99} | /config/tpu/generation
{config.tpu.envFile: /env} | config.tpu.envFile: its folder is mounted, and the host's
{config.tpu.envFile: /etc/tpu-env} | config.tpu.envFile: its folder is mounted, and the host's /etc
{config.gpu.driverRoot: /./} | /config/gpu/driverRoot
{config.gpu.cdiAnnotationPrefix: cdi} | /config/gpu/cdiAnnotationPrefix
{config.reclaim: {mode: observe, leakedSandbox: restart}} | leakedSandbox: restart
{config: {tpu: {enabled: false}, gpu: {enabled: false}}} | config.tpu.enabled: nothing is left to advertise
{resources.limits.memory: lots} | /resources/limits/memory
{resources.limits.memori: 1Gi} | /resources/limits': additional properties 'memori'
{fullnameOverride: Has_Upper} | /fullnameOverride
{seccompProfile: {type: Localhost}} | /seccompProfile': .*'localhostProfile'
{seccompProfile: {type: RuntimeDefault, localhostProfile: a.json}} | /seccompProfile
{config.http.address: 127.0.0.1} | config.http.address: a pod's address
{config.tpu.api: dra} | the api of google.com/tpu is dra.*; set dra.enabled: true
{config.gpu.api: dra} | the api of nvidia.com/gpu is dra.*; set dra.enabled: true
{config.pools: [{resourceName: a.b/c, devices: ['*:*'], api: dra}]} | the api of a.b/c is dra.*; set dra.enabled: true
{config.map: {default: {gpu: {api: dra}}}} | the api of nvidia.com/gpu is dra.*; set dra.enabled: true
{config.tpu.api: claims} | /config/tpu/api
{config.dra.kubeletRoot: kubelet} | /config/dra/kubeletRoot
{config.dra.driverName: Holdfast} | /config/dra/driverName
{dra.enable: true} | 'enable' not allowed
{config: null} | missing property 'config'
{image: null} | missing property 'image'
{image.repository: null} | /image': missing property 'repository'
{probes.liveness: null} | /probes': missing property 'liveness'
{dra: {enabled: true, deviceClasses: null}} | /dra': missing property 'deviceClasses'
{runtimeClasses.nvidia: null} | /runtimeClasses': missing property 'nvidia'
{config.gate.wait: 27s} | config.gate.wait: kubelet gives up after 30 s; use at most 26
{config.map: {a: 'x: ['}} | config.map.a: error converting YAML
{config.map: {a: '[1]'}} | config.map.a: error unmarshaling JSON
{config.map: {a: 'gate: {wiat: 1s}'}} | config.map.a: gate.wiat: there is no such key
{config.map: {a: 'gpu: [a]'}} | config.map.a: gpu: it is a section with keys
{config: {reclaim: {mode: observe}, map: {a: {reclaim: {leakedSandbox: restart}}}}} | config.map.a: reclaim.leakedSandbox: restart
{config.map: {a: 'kubelet: {pluginDir: /a}'}} | config.map.a: kubelet.pluginDir is the
{config.map: {a: {http: {port: 1}}}} | /config/map/a': additional properties 'http'
{config.map: {a: {kubelet: {pluginDir: /a}}}} | /config/map/a/kubelet'
{config.map: {a: {gate: {wait: soon}}}} | /config/map/a/gate/wait
{config.map: {a: {}, b: {}}} | config.default: a node without the label would have
{config: {map: {a: {}}, default: b}} | config.default: there is no document b in
{tolerations: [{kee: a}]} | /tolerations/0': additional properties 'kee'
{affinity: {nodeAfinity: {}}} | /affinity': additional properties 'nodeAfinity'
{updateStrategy.rollingUpdate.maxUnavailable: 0} | /rollingUpdate/maxUnavailable
{updateStrategy.rollingUpdate.maxUnavailable: 0%} | /rollingUpdate/maxUnavailable
"""
"""Values that the chart refuses, and what it says of each."""


@pytest.mark.parametrize("row", _BAD.strip().splitlines())
def test_a_value_that_cannot_be_right_is_refused_by_its_path(row: str) -> None:
    values, _, told = row.partition(" | ")
    ((path, value),) = yaml.safe_load(values).items()
    with pytest.raises(RefusedError, match=told):
        _refuse(_at(path, value))


_SELECTORS: list[dict[str, list[str]]] = [
    {"devices": ["1B36:0010"]},
    {"devices": ["*:00?0"]},
    {"devices": ["1b36"]},
    {"classes": ["0X0302"]},
    {"classes": ["0302", "x"]},
    {"addresses": ["0000:3b:*"]},
    {"addresses": [""]},
    {"devices": [], "classes": []},
    {},
]


@pytest.mark.parametrize("selectors", _SELECTORS)
@pytest.mark.parametrize(
    "name", ["example.com/nvme", "a/b", "foo", "/b", "A.b/c", "a.b/c/d", "a.b/c_D.e", "a.b/"]
)
def test_the_chart_takes_a_pool_exactly_where_the_daemon_does(
    name: str, selectors: dict[str, list[str]]
) -> None:
    values = {"pools": [{"resourceName": name, **selectors}]}
    try:
        convert(values)
    except SettingsError:
        with pytest.raises(RefusedError):
            _refuse({"config": values})
    else:
        render({"config": values}, helm=False)


def _agree(paths: Mapping[str, Any]) -> bool:
    """Tell whether the daemon takes settings with these values by path; the chart must agree."""
    # What a pod may have of the host is decided by values beside `config`.
    values = {"config": tree(paths), "dra": {"enabled": True}, "hostNetwork": True}
    if _refused(paths):
        with pytest.raises(RefusedError):
            _refuse(values)
        return False
    render(values, helm=False)
    return True


def _refused(paths: Mapping[str, Any]) -> bool:
    try:
        convert(tree(paths))
    except SettingsError:
        return True
    return False


@pytest.mark.parametrize("paths", [paths for paths, _ in REFUSED], ids=str)
def test_the_chart_refuses_what_the_daemon_refuses(paths: dict[str, Any]) -> None:
    assert not _agree(paths)


def _reasons() -> Iterator[str]:
    """Yield each reason for which the daemon refuses well-formed settings, as a pattern."""
    for node in ast.walk(ast.parse(inspect.getsource(validation))):
        if isinstance(node, ast.Yield) and node.value is not None:
            parts = node.value.values if isinstance(node.value, ast.JoinedStr) else [node.value]
            texts = (each.value if isinstance(each, ast.Constant) else None for each in parts)
            yield ".*".join(re.escape(text) if isinstance(text, str) else "" for text in texts)


def test_each_reason_for_which_the_daemon_refuses_settings_is_tried_on_the_chart() -> None:
    told = []
    for paths, _ in REFUSED:
        with pytest.raises(SettingsError) as refused:
            convert(tree(paths))
        told.append(str(refused.value))

    reasons = list(_reasons())
    untried = [each for each in reasons if not any(re.search(each, text) for text in told)]
    assert len(reasons) > 20
    assert untried == [], "add a row to fakes/refusedsettings.py, and the reason to _refusals.tpl"


@pytest.mark.parametrize("paths", TAKEN, ids=str)
def test_the_chart_takes_what_is_just_within_the_daemons_bounds(paths: dict[str, Any]) -> None:
    assert _agree(paths)


def _apart() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield those settings with one key, or all, in a document; what is beside it works alone."""
    for paths in (*(paths for paths, _ in REFUSED), *TAKEN):
        for count in {1, len(paths)}:
            document = dict([*paths.items()][-count:])
            own = {path: value for path, value in paths.items() if path not in document}
            if all(take_up(path) is not TakeUp.POD for path in document) and not _refused(own):
                yield own, document


@pytest.mark.parametrize(("own", "document"), [*_apart()], ids=str)
def test_chart_and_daemon_agree_about_a_document(
    own: dict[str, Any], document: dict[str, Any]
) -> None:
    config = {**tree(own), "map": {"default": tree(document)}}
    values = {"config": config, "dra": {"enabled": True}}
    if _refused({**own, **document}):
        with pytest.raises(RefusedError, match="/config/map/default|config.map.default: "):
            _refuse(values)
    else:
        render(values, helm=False)


def _drawn() -> st.SearchStrategy[dict[str, Any]]:
    """Draw a few keys of those bounds, and of all others, with values right and wrong."""
    bounds = st.sampled_from([*(paths for paths, _ in REFUSED), *TAKEN])
    schema = values_schema()["properties"]["config"]
    single = [
        path
        for path, kind in known_paths().items()
        if entry_of(kind) is None and path.split(".")[0] not in {"host", "named"}
    ]
    values = st.sampled_from([0, 1, -1, 2.5, "", "x", "1s", "0s", "1.5h", "1m30s", True, [], ["x"]])

    def of(path: str) -> st.SearchStrategy[dict[str, Any]]:
        node = schema
        for name in path.split("."):
            node = node["properties"][name]
        known = [*node.get("enum", ()), *([node["default"]] if "default" in node else [])]
        own = st.sampled_from(known) if known else values
        return st.one_of(own, values).map(lambda value: {path: value})

    single_one = st.sampled_from(single).flatmap(of)
    return st.lists(st.one_of(bounds, single_one), min_size=1, max_size=3).map(
        lambda each: {path: value for paths in each for path, value in paths.items()}
    )


@given(_drawn())
@hypothesis.settings(deadline=None, max_examples=200, derandomize=True)
def test_chart_and_daemon_agree_about_values_that_are_drawn(paths: dict[str, Any]) -> None:
    _agree(paths)


_ENTRIES: Mapping[str, dict[str, Any]] = {
    "pools": {"resourceName": "a.b/c", "addresses": ["*"]},
    "devices": {"match": {"uuid": "*"}},
    "sharing.timeSlicing.resources": {"name": "nvidia.com/gpu", "replicas": 2},
}
"""What an entry of each list of sections needs."""


def _forms(node: dict[str, Any], at: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place of each text in the schema *node* that is to have a form, with its schema."""
    for below in node.get("anyOf", ()):
        yield from _forms(below, at)
    if "pattern" in node and "anyOf" not in node:
        yield at, node
    if "items" in node:
        yield from _forms(node["items"], f"{at}[]")
    for name, each in node.get("properties", {}).items():
        if name not in DOCUMENTS:
            yield from _forms(each, f"{at}.{name}" if at else name)


def _placed(place: str, text: str) -> dict[str, Any]:
    """Return settings by path in which *text* is at *place*."""
    listed, is_listed, key = place.partition("[].")
    if not is_listed:
        return {place: text}
    inner, is_list, _ = key.partition("[]")
    return {listed: [_ENTRIES[listed] | tree({inner: [text] if is_list else text})]}


_FORMS = dict(_forms(values_schema()["properties"]["config"]))


@st.composite
def _texts(draw: st.DrawFn) -> tuple[str, str]:
    """Draw the place of a text, and one that has the form of its key, almost has it, or has not."""
    place = draw(st.sampled_from(sorted(_FORMS)))
    other = draw(st.sampled_from([place, place, place, *sorted(_FORMS)]))
    text = draw(st.from_regex(_FORMS[other]["pattern"]) | st.text(max_size=4))
    at = draw(st.integers(0, len(text)))
    odd = [
        "",
        "",
        "\n",
        "\r",
        "\0",
        "/",
        "/..",
        "..",
        ".",
        ":",
        "-",
        " ",
        "A",
        "\x7f",
        "é",
        "\u2028",
    ]
    return place, f"{text[:at]}{draw(st.sampled_from(odd))}{text[at:]}"


@given(_texts())
@hypothesis.settings(deadline=None, max_examples=200, derandomize=True)
def test_chart_and_daemon_agree_about_the_form_of_each_text(drawn: tuple[str, str]) -> None:
    place, text = drawn
    mount = _FORMS[place].get("not", {}).get("pattern")
    hypothesis.assume(mount is None or not re.search(mount, text))  # the chart's own rules
    hypothesis.assume(place != "tpu.envFile" or re.search("[^/.].*/", text))
    _agree(_placed(place, text))


def test_the_forms_that_are_drawn_are_those_of_all_text_that_has_one() -> None:
    assert {"stateDir", "pools[].devices[]", "devices[].match.index", "dra.driverName"} <= {*_FORMS}
    assert len(_FORMS) > 25


def test_there_is_nothing_to_scrape_without_a_port() -> None:
    with pytest.raises(RefusedError, match="podMonitor.enabled: there is nothing to scrape"):
        _refuse({"podMonitor": {"enabled": True}, "config": {"http": {"port": 0}}})


def _refuse(values: dict[str, Any]) -> None:
    """Have Helm's engine refuse *values*: each version of the binary has words of its own."""
    render(values, helm=False)


def test_every_key_of_the_values_is_in_the_schema_and_every_key_of_the_schema_has_a_default() -> (
    None
):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = values_schema()
    del found["properties"]["config"], values["config"]
    del found["properties"]["global"]  # Helm's own
    for name in VALUES:  # known to be refused with a word of help
        del found["properties"][name]

    assert set(_in_schema(found)) == set(_in_values(values, found))


_KUBERNETES = ("affinity", "resources", "seccompProfile")
"""What stands in these is Kubernetes' own, of which the defaults need not have every key."""


def _in_schema(node: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, below in node.get("properties", {}).items():
        if name in _KUBERNETES:
            yield name
            continue
        # Not written out among the defaults: kubelet's own is 0.
        if name != "initialDelaySeconds":
            yield f"{at}{name}"
        yield from _in_schema(below, f"{at}{name}.")


def _in_values(values: dict[str, Any], node: dict[str, Any], at: str = "") -> Iterator[str]:
    for name, below in values.items():
        yield f"{at}{name}"
        inner = node["properties"].get(name, {})
        if "properties" in inner and name not in _KUBERNETES:
            yield from _in_values(below, inner, f"{at}{name}.")


def test_the_schema_knows_every_key_of_the_settings_but_where_the_container_has_the_hosts_folders() -> (
    None
):
    def paths(node: dict[str, Any], at: str = "") -> Iterator[str]:
        for name, below in node["properties"].items():
            if "properties" in below:
                yield from paths(below, f"{at}{name}.")
            else:
                yield f"{at}{name}"

    found = set(paths(values_schema()["properties"]["config"])) - set(DOCUMENTS)

    fixed = {f"host.{name}" for name in ("sys", "proc", "cgroup", "etc", "run")}
    fixed |= {"named.folder"}
    assert found == set(known_paths()) - fixed


def test_every_default_of_the_daemon_is_a_value_that_the_chart_takes_and_hands_on() -> None:
    values = plain(Settings())
    del values["host"], values["named"]["folder"]

    found = settings(objects({"config": values}))

    assert plain(found) == {
        **plain(Settings()),
        "host": {**plain(Settings())["host"], "cgroup": "/host/cgroup"},
    }


def test_every_key_of_the_settings_has_its_meaning_below_it() -> None:
    assert [
        key.path for group in groups() for key in group.keys if len(key.meaning.split()) < 2
    ] == []


def test_whole_numbers_stay_whole_on_their_way_to_the_daemon() -> None:
    found = settings(objects({"config": {"history": {"perDevice": 10_000_000}}}))

    assert found.history.per_device == 10_000_000
