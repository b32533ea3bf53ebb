"""Whatever a file says, its settings are used or refused by the key: no other error ends a start."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fakes.settingsfiles import load
from holdfast.errors import SettingsError
from holdfast.model.text import printable
from holdfast.settings import Settings, convert, known_paths, variable
from holdfast.settings.sources import SettingsSources, for_start
from holdfast.settings.types import Section, entry_of, forms, is_section

_LIKE_MSGSPEC = (
    "x - at `$.gate.wait`",
    "Object contains unknown field `x` - at `$.pools[...]`",
    "x` - at `key` in `$`",
    "Expected `str` matching regex 'x' - at `$.devices[0].match`",
    "Invalid enum value 'x' - at `$[7].x`",
    "- at `$",
)
"""Text that looks like the end, or the whole, of an error of msgspec's."""
_THEIRS = {
    "version": ["v1", 1],
    "flags": {"migStrategy": "mixed", "plugin": {"deviceListStrategy": "envvar"}},
    "imex": {"channelIDs": [0]},
    "resources": {"gpus": [{"pattern": "*", "name": "gpu"}], "mig": []},
    "sharing": {
        "timeSlicing": {"renameByDefault": True, "resources": [{"name": "gpu", "replicas": 2}]},
        "mps": None,
    },
}
"""Keys of a file of NVIDIA's plugin."""
_SNIPPETS = (
    "!!set {/a, b}",
    "!!set {1}",
    "!!omap [a: 1]",
    "!!pairs [a: 1]",
    "!!binary AAAA",
    "2026-01-01",
    "2026-01-01T00:00:00Z",
    '"\\ud800"',
    "{? [a] : 1}",
    "{? !!set {a} : 1}",
    "{~: 1}",
    "{on: 1}",
    "{2026-01-01: 1}",
    "{0x" + "f" * 5000 + ": 1}",
    "0x" + "f" * 5000,
    ".nan",
    "-.inf",
    "{<<: {7: 1}}",
    "[[[[{}]]]]",
    "!!python/name:os.system",
    "&a {b: [*a]}",
)
"""What YAML can say beside JSON, and what it cannot."""


def _names(section: type[Section] = Settings) -> Iterator[str]:
    """Yield the name of each key."""
    for name, kind in forms(section).items():
        yield name
        if (below := kind if is_section(kind) else entry_of(kind)) is not None:
            yield from _names(below)


_TEXT = st.sampled_from(_LIKE_MSGSPEC) | st.text(max_size=5)
_HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | _TEXT
    | st.binary(max_size=3)
    | st.dates()
    | st.datetimes()
    | st.just(10**400)
    | st.sampled_from(["/a", "1s", "dra", "a.b/c", "*"])
)
_KEYS = st.sampled_from(sorted({*_names()})) | _HASHABLE
_VALUES = st.recursive(
    _HASHABLE,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(_KEYS, below, max_size=3)
        | st.sets(_HASHABLE, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def _trees(draw: st.DrawFn) -> dict[Any, Any]:
    """Draw a tree whose keys are of the settings most of the time, down to one that is odd."""

    def of(section: type[Section]) -> dict[Any, Any]:
        kinds = forms(section)
        found: dict[Any, Any] = {}
        for name in draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=2)):
            kind, odd = kinds[name], draw(st.integers(0, 3)) == 0
            entry = entry_of(kind)
            if is_section(kind) and not odd:
                found[name] = of(kind)
            elif entry is not None and not odd:
                found[name] = [of(entry)]
            else:
                found[name] = draw(_VALUES)
        if draw(st.integers(0, 5)) == 0:
            found[draw(_KEYS)] = draw(_VALUES)
        return found

    return of(Settings)


@st.composite
def _theirs(draw: st.DrawFn) -> dict[Any, Any]:
    """Draw a file of NVIDIA's format in which some values and keys are odd."""

    def of(value: object) -> object:
        if draw(st.integers(0, 4)) == 0:
            return draw(_VALUES)
        if isinstance(value, dict):
            found: dict[Any, Any] = {key: of(below) for key, below in value.items()}
            return found | (draw(st.dictionaries(_KEYS, _VALUES, max_size=1)))
        return [of(each) for each in value] if isinstance(value, list) else value

    keys = draw(st.sets(st.sampled_from(sorted(_THEIRS)), min_size=1))
    return {key: of(_THEIRS[key]) for key in sorted(keys)} | {"version": "v1"}


def _refusal(of: Any) -> str:
    """Return why *of* is refused, empty where it is not; anything but a SettingsError goes on."""
    try:
        of()
    except SettingsError as error:
        return str(error)
    return ""


def _written(drawn: Any) -> str:
    """Return YAML of a tree, or of a key and what stands behind it."""
    return f"{drawn[0]}: {drawn[1]}\n" if isinstance(drawn, tuple) else str(yaml.safe_dump(drawn))


_OFTEN = hypothesis.settings(deadline=None, max_examples=200, derandomize=True)


@pytest.mark.slow
@given(_trees())
@_OFTEN
def test_any_tree_is_taken_or_refused_by_the_key(tree: dict[Any, Any]) -> None:
    told = _refusal(lambda: convert(tree))
    if told:
        start, _, rest = told.partition("cannot use the configuration: ")
        assert start == ""
        keys = (printable(str(key), 60) for key in tree)
        assert rest.startswith(tuple(keys)), told


@pytest.mark.slow
@given(
    _trees() | st.tuples(st.sampled_from(sorted({*forms(Settings)})), st.sampled_from(_SNIPPETS))
)
@_OFTEN
def test_any_file_is_taken_or_refused_by_the_key_or_the_line(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "odd.yaml"
    file.write_text(_written(drawn))
    told = _refusal(lambda: load(file, {}))
    keys = [drawn[0]] if isinstance(drawn, tuple) else [printable(str(key), 60) for key in drawn]
    assert told == "" or any(key in told for key in keys) or re.search(r": line \d+: ", told), told


@pytest.mark.slow
@given(
    _theirs()
    | st.tuples(st.sampled_from(["sharing", "flags", "resources"]), st.sampled_from(_SNIPPETS))
)
@_OFTEN
def test_any_file_of_nvidias_format_is_taken_or_refused_with_its_name(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "theirs.yaml"
    file.write_text(_written(drawn))
    told = _refusal(lambda: load(None, {"CONFIG_FILE": str(file)}))
    assert told == "" or str(file) in told or told.startswith("cannot use the configuration: "), (
        told
    )


@pytest.mark.slow
@given(_trees() | _theirs() | st.text(max_size=30))
@_OFTEN
def test_no_named_document_prevents_a_start(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any
) -> None:
    folder = tmp_path_factory.mktemp("node")
    (folder / "named").mkdir()
    (folder / "named/default").write_text(drawn if isinstance(drawn, str) else _written(drawn))
    file = folder / "config.yaml"
    file.write_text(f"stateDir: {folder}/state\nnamed: {{folder: {folder}/named}}\n")

    found = for_start(lambda: SettingsSources(file, {}))

    assert (found.document is None) == (found.refused != "")


@given(st.dictionaries(st.sampled_from(sorted(known_paths())), _TEXT | st.sampled_from(_SNIPPETS)))
@_OFTEN
def test_any_text_of_a_variable_is_taken_or_refused_by_the_key(texts: dict[str, str]) -> None:
    told = _refusal(lambda: load(None, {variable(path): text for path, text in texts.items()}))
    assert told == "" or any(path in told for path in texts), told


def test_a_file_that_aliases_make_deep_is_refused_before_it_is(tmp_path: Path) -> None:
    lines = ["a0: &a0 1", *(f"a{n}: &a{n} {'{a: ' * 50}*a{n - 1}{'}' * 50}" for n in range(1, 25))]
    file = tmp_path / "deep.yaml"
    file.write_text("\n".join(lines))

    with pytest.raises(SettingsError, match="line 3: it is nested too deep"):
        load(file, {})
