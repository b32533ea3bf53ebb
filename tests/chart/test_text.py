"""Each text of the values is in the objects as it was given, whatever YAML makes of it unquoted."""

from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from chart.rendering import Object, objects, settings
from chart.theirs import VALUES
from chart.valuesschema import values_schema
from holdfast.settings import convert
from holdfast.settings.yamltext import parse

_MARK = "qqq"
_FORMS = (_MARK, f"/a/{_MARK}", f"a.b/{_MARK}", f"{_MARK}/")
"""The forms of text: each key that is neither a duration nor a number takes one of them."""
_NAMES = ("yes", "null", "1", "1e3", "0x1f", "2001-01-01")
_TEXTS = (
    *("1.5", "12:30", "~", "a: b", "a:", "a #b", " a ", "'", '"', "\\", "{a", "&a", "!a", "@a"),
    *("|", "- a", "\ta", "a\nb: c", "  a\nb", "é", "{{ 1 }}"),
)
_SCHEMA = values_schema()
for name in VALUES:  # known to be refused
    del _SCHEMA["properties"][name]


def _filled(node: dict[str, Any], text: str, shown: str) -> Any:
    """Return a value of the schema *node* with *shown* for each text of it that *text* can be."""
    if node.get("type") == "boolean":
        return True
    if node.get("type") == "string" and "enum" not in node:
        can = Draft7Validator(node).is_valid
        fitting = (form for form in _FORMS if can(form) and can(form.replace(_MARK, text)))
        return next((form.replace(_MARK, shown) for form in fitting), None)
    if "items" in node:
        inner = _filled(node["items"], text, shown)
        return None if inner is None else [inner]
    below = {name: _filled(each, text, shown) for name, each in node.get("properties", {}).items()}
    if isinstance(node.get("additionalProperties"), dict):
        below[shown] = _filled(node["additionalProperties"], text, shown)
    return {name: each for name, each in below.items() if each is not None} or None


def _made(text: str, shown: str) -> list[Object]:
    """Return the objects made of all values, with *shown* for each text that *text* can be."""
    values = _filled(_SCHEMA, text, shown)
    config = values["config"]
    for name in ("devices", "sharing"):  # they decide about hardware, and no object names them
        del config[name]
    pool = config.get("pools", [{}])[0]
    config["pools"] = [{"resourceName": "a.b/c", "addresses": ["*"], **pool, "api": "dra"}]
    for key, section in _SCHEMA["properties"]["config"]["properties"].items():
        if "api" in section.get("properties", ()):  # what has one name has one API
            config[key] |= {"api": "dra"}
    config["gpu"] |= {"migStrategy": "mixed"}
    config["stateDir"] = f"/state{config.get('stateDir', '')}"  # outside of the plugin folder
    config.setdefault("name", "documents")
    values["seccompProfile"] |= {"type": "Localhost"}
    return _read(objects(values))


def _read(found: list[Object]) -> list[Object]:
    """Return *found* with the daemon's configuration as the daemon reads it."""
    for each in found:
        if "config.yaml" in each.get("data", ()):
            each["data"]["config.yaml"] = parse(each["data"]["config.yaml"])
    return found


def _replaced(node: Any, text: str) -> Any:
    """Return *node* with *text* for the mark in each key and value."""
    if isinstance(node, dict):
        return {_replaced(key, text): _replaced(each, text) for key, each in node.items()}
    if isinstance(node, list):
        return [_replaced(each, text) for each in node]
    return node.replace(_MARK, text) if isinstance(node, str) else node


@pytest.mark.parametrize("text", [*_NAMES, *_TEXTS])
def test_text_is_in_the_objects_as_it_was_given(text: str) -> None:
    marked = _made(text, _MARK)

    # Patterns and paths have no tabs or line ends.
    assert str(marked).count(_MARK) > (60 if text.isprintable() else 56)
    assert _made(text, text) == _replaced(marked, text)


@pytest.mark.parametrize("name", _NAMES)
def test_any_name_of_a_release_is_text(name: str) -> None:
    assert objects(name=name) == _replaced(objects(name=_MARK), name)


@pytest.mark.parametrize("document", ["    # a note\ngate:\n  wait: 1s", "\n\n  {}\n\n"])
def test_a_named_document_is_read_as_it_was_given(document: str) -> None:
    config = {"map": dict.fromkeys(_NAMES, document), "default": "1"}
    found = [each for each in objects({"config": config}) if each["kind"] == "ConfigMap"]

    read = {name: yaml.safe_load(text) for name, text in found[1]["data"].items()}
    assert read == dict.fromkeys(_NAMES, yaml.safe_load(document))


def test_a_number_that_is_text_to_helm_is_text_to_the_daemon() -> None:
    """Helm writes them without quotes."""
    texts = ("9" * 309, "0x" + "f" * 17, "0b_", "1.0e+999", ".1_0", "2001-99-99", "=", "<<")
    config = {"gpu": {"displays": texts}}
    assert settings(objects({"config": config})).gpu.displays == texts


@pytest.mark.parametrize("seconds", [5e-7, 10**20])
def test_a_number_that_helm_writes_with_an_exponent_is_a_number(seconds: float) -> None:
    config = {"withholdAfter": seconds}
    read = settings(objects({"config": config}))
    assert read.withhold_after == convert(config).withhold_after
