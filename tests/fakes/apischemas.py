"""Holds objects against the published schemas of Kubernetes, each of which is read once."""

import re
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource


def check(body: dict[str, Any], minor: int) -> None:
    """Raise jsonschema's ValidationError where *body* is nothing that Kubernetes 1.*minor* takes."""
    _validator(body["kind"], body["apiVersion"], minor).validate(body)


@cache
def _validator(kind: str, api_version: str, minor: int) -> Draft202012Validator:
    # The schema of a StorageClass of storage.k8s.io/v1 is in storageclass-storage-v1.
    named = re.sub(r"^([^./]+)[^/]*/", r"\1-", api_version)
    schema = _schema(f"{kind.lower()}-{named}", minor)
    registry: Registry[Any] = Registry()
    for each in (schema, _schema("_definitions", minor)):
        registry = Resource.from_contents(each) @ registry
    return Draft202012Validator(schema, registry=registry.crawl())


@cache
def _schema(name: str, minor: int) -> Any:
    file = f"kubernetes-json-schema/v1.{minor}.0-local-strict/{name}.json"
    return schema_contents(file, f"1.{minor}")
