"""The JSON schema for editors accepts what the loader accepts and refuses what it can see is wrong."""

import re
import tomllib
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from ematix_flow.schema import json_schema
from ematix_flow.toml_shape import document_keys, keys_of
from tests.unit.test_bad_declarations import toml_cases
from tests.unit.test_parity import CASES, MODELS

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

# Problems inside one value or one table. Rules between keys are the loader's alone.
SEEN_BY_A_SCHEMA = re.compile(
    r": unknown key|: missing$|: found .*; allowed: (an integer|true or false|one character|a string|a list|\[)"
    r"|kind: (found|missing)"
)


def visible(problems: list[str]) -> bool:
    return any(SEEN_BY_A_SCHEMA.search(problem) for problem in problems)


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("key", CASES)
def test_it_accepts_every_key(key: str) -> None:
    VALIDATOR.validate(tomllib.loads('pipeline_name = "p"\n' + CASES[key][0]))


@pytest.mark.parametrize(("toml", "problems"), [case for case in toml_cases() if visible(case.values[1])])
def test_it_refuses_what_it_can_see(toml: str, problems: list[str]) -> None:
    assert not VALIDATOR.is_valid(tomllib.loads(toml)), problems


def test_several_pipelines() -> None:
    one = tomllib.loads('pipeline_name = "p"\n[source]\nconnection = "a"\n[target]\nconnection = "b"')
    VALIDATOR.validate({"pipelines": [one, {**one, "pipeline_name": "q"}]})
    assert not VALIDATOR.is_valid({"pipelines": [one], "pipeline_name": "p"})
    assert not VALIDATOR.is_valid({"pipelines": []})


def test_the_document_has_the_keys_of_the_loader() -> None:
    assert sorted(SCHEMA["$defs"]["Pipeline"]["properties"]) == sorted(document_keys())


@pytest.mark.parametrize("model", [model for model in MODELS if model.__name__ in SCHEMA["$defs"]])
def test_every_key_is_described(model: type[BaseModel]) -> None:
    schema = SCHEMA["$defs"].get(f"{model.__name__}.connection", SCHEMA["$defs"][model.__name__])
    assert sorted(schema["properties"]) == sorted(keys_of(model))
    assert schema["additionalProperties"] is False
    assert [key for key, value in schema["properties"].items() if not value.get("description")] == []


def test_what_only_python_can_give_is_absent() -> None:
    assert not {"udfs", "aggregate_udfs", "definition", "origin"} & set(all_properties(SCHEMA))


def test_defaults_and_choices_come_from_the_models() -> None:
    window = SCHEMA["$defs"]["Window"]["properties"]
    assert window["max_groups_per_window"]["default"] == 1_000_000
    assert window["late_data"]["enum"] == ["drop", "reopen", "dlq"]
    assert SCHEMA["$defs"]["Target.duckdb"]["properties"]["mode"]["default"] == "append"


def all_properties(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [key for part in schema for key in all_properties(part)]
    if not isinstance(schema, dict):
        return []
    own = list(schema["properties"]) if isinstance(schema.get("properties"), dict) else []
    return own + [key for part in schema.values() for key in all_properties(part)]
