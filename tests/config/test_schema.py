"""JSON Schemas of the config files refuse what the program refuses."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.config.cluster import Cluster
from nearfree.config.engine_studies import WeightsSpec
from nearfree.config.files import BackendEnvironment, DeploymentSpec, Site, Sources, schemas
from nearfree.core.modules.registry import STUDIES
from nearfree.core.names import Name
from nearfree.core.setting import Positive
from nearfree.hardware.platforms import Platform

SHIPPED = Path(__file__).parents[2] / "config"
KINDS: dict[str, Any] = {
    "config": Site,
    "platforms": dict[Name, Platform],
    "backends": dict[Name, BackendEnvironment],
    "studies": dict[Name, STUDIES],
    "sources": Sources,
    "weights": dict[Name, WeightsSpec],
    "deployments": dict[Name, DeploymentSpec],
    "cluster": Cluster,
    "takes": dict[Name, dict[Name, Positive]],
}
VALIDATORS = {name: jsonschema.Draft202012Validator(schema) for name, schema in schemas().items()}
VALUES = [None, True, 0, -1, 1, 2.5, "", "cpu", "A b", [], ["cpu"], [1, 0], {}, {"cpu": 1}]
SITE_FILES = {
    "takes": {"cpu": {"dense_ffn": 2, "hardware": 1}},
    "backends": {"torch": {"environment": "cpu"}, "vllm": {"environment": "own_vllm"}},
}
"""Files of a site that are not shipped."""


def load(name: str) -> Any:
    """Return the shipped document of a name; takes.yaml and backends.yaml are not shipped."""
    if name in SITE_FILES:
        return SITE_FILES[name]
    document = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    return {key: document[key] for key in list(document)[:3]} if name == "platforms" else document


DOCUMENTS = {name: load(name) for name in KINDS}


def accepted(name: str, document: Any) -> tuple[bool, bool]:
    """Return whether the program and whether the schema accept a document."""
    try:
        msgspec.convert(document, KINDS[name])
    except msgspec.ValidationError:
        by_program = False
    else:
        by_program = True
    return by_program, VALIDATORS[name].is_valid(document)


def value_paths(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of a document."""
    yield path
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(len(document))
        for key in keys:
            yield from value_paths(document[key], (*path, key))


@st.composite
def changed_document(draw: st.DrawFn) -> tuple[str, Any]:
    """Draw a shipped document with one value replaced, one key removed, or one key more."""
    name = draw(st.sampled_from(sorted(KINDS)))
    document = copy.deepcopy(DOCUMENTS[name])
    *path, field = draw(st.sampled_from([p for p in value_paths(document) if p]))
    parent = document
    for key in path:
        parent = parent[key]
    action = draw(st.sampled_from(["replace", "remove", "add"]))
    if action == "replace":
        parent[field] = draw(st.sampled_from(VALUES))
    elif action == "remove":
        del parent[field]
    elif isinstance(parent, dict):
        parent[draw(st.sampled_from(["extra", "Bad name", "batch"]))] = draw(
            st.sampled_from(VALUES)
        )
    else:
        parent.append(draw(st.sampled_from(VALUES)))
    return name, document


@pytest.mark.parametrize("name", KINDS)
def test_a_schema_is_a_schema(name: str) -> None:
    """Each schema fits the standard, and accepts what is shipped."""
    jsonschema.Draft202012Validator.check_schema(schemas()[name])
    assert accepted(name, DOCUMENTS[name]) == (True, True)


def test_every_file_has_a_schema() -> None:
    """There is a schema for every file that a config may hold, and for no other."""
    assert set(schemas()) == set(KINDS)
    assert {path.stem for path in SHIPPED.glob("*.yaml")} <= set(KINDS)


@pytest.mark.slow
@given(changed_document())
@settings(deadline=None, max_examples=400)
def test_a_schema_agrees_with_the_program(case: tuple[str, Any]) -> None:
    """A document with one change is accepted by both, the schema and the program, or by neither."""
    by_program, by_schema = accepted(*case)
    assert by_program == by_schema


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("config", ("epsilon",), 1),
        ("config", ("here",), []),
        ("config", ("extra",), 1),
        ("platforms", ("h20", "kind"), "tpu"),
        ("platforms", ("H20",), {"kind": "cpu"}),
        ("backends", ("torch", "environment"), "../cpu"),
        ("studies", ("dense_ffn", "batch"), [0]),
        ("studies", ("dense_ffn", "protocol"), {"name": "sweep", "rounds": 5}),
        ("studies", ("dense_ffn", "protocol", "rounds"), 2),
        ("weights", ("smollm2_135m", "random"), {"config": "a", "release": "1.0"}),
        ("weights", ("llama_3_2_1b_q8_0", "random", "release"), None),
        ("weights", ("smollm2_135m", "member"), None),
        ("weights", ("smollm2_135m", "member", "sha256"), "b179"),
        ("weights", ("smollm2_135m", "file_type"), "q2_k"),
        ("weights", ("Small",), {"file_type": "f16", "random": {"config": "a", "release": "1"}}),
        ("weights", ("small",), {"file_type": "f16"}),
        ("takes", ("cpu", "dense_ffn"), 0),
    ],
)
def test_a_mistake_is_refused_by_both(name: str, path: tuple[str, ...], value: object) -> None:
    """A value that the program refuses is refused by the schema, too."""
    document = copy.deepcopy(DOCUMENTS[name])
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    assert accepted(name, document) == (False, False)


@pytest.mark.parametrize("name", KINDS)
def test_the_shipped_schemas_are_those_of_the_program(name: str) -> None:
    """The schema file that messages refer to is there, and is the program's."""
    shipped = SHIPPED / "schema" / f"{name}.json"
    assert json.loads(shipped.read_text()) == json.loads(json.dumps(schemas()[name]))
