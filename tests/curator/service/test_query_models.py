"""What OpenAPI says of queries is what the curator reads: the same kinds, fields and defaults."""

import dataclasses
import types
import typing
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter

from discreet.curator.expressions import CONDITIONS, NUMBERS
from discreet.curator.queries import QUERIES
from discreet.curator.service import expression_models
from discreet.curator.service.query_models import QUERY_MODELS, QueryModel


def members(union: Any) -> list[type[BaseModel]]:
    """The models in an annotated union, however deeply it is wrapped."""
    if isinstance(union, type):
        return [union]
    assert typing.get_origin(union) in (typing.Annotated, typing.Union, types.UnionType)
    return [one for part in get_args(union) for one in _members_if_any(part)]


def _members_if_any(part: Any) -> list[type[BaseModel]]:
    return members(part) if isinstance(part, type) or typing.get_origin(part) else []


def tags(model: type[BaseModel], key: str) -> tuple[str, ...]:
    return get_args(model.model_fields[key].annotation)


def by_tag(models: list[type[BaseModel]], key: str) -> dict[str, type[BaseModel]]:
    return {tag: model for model in models for tag in tags(model, key)}


FORMS = [
    *(
        ("kind", tag, form, by_tag(list(QUERY_MODELS), "kind").get(tag))
        for tag, form in QUERIES.items()
    ),
    *(
        ("op", tag, form, by_tag(members(expression_models.NumberModel), "op").get(tag))
        for tag, form in NUMBERS.items()
    ),
    *(
        ("op", tag, form, by_tag(members(expression_models.ConditionModel), "op").get(tag))
        for tag, form in CONDITIONS.items()
    ),
]


@pytest.mark.parametrize(("key", "tag", "form", "model"), FORMS, ids=lambda value: str(value)[:20])
def test_model_has_the_fields_of_its_form(key: str, tag: str, form: Any, model: Any) -> None:
    assert model is not None, f"{tag} has no model"
    declared = {one.name: one for one in dataclasses.fields(form)}
    assert set(model.model_fields) == {key, *declared}
    for name, one in declared.items():
        described = model.model_fields[name]
        assert described.is_required() == (one.default is dataclasses.MISSING), name
        if not described.is_required():
            assert described.default == one.default, name


def test_no_model_describes_what_the_curator_does_not_read() -> None:
    assert set(by_tag(members(QueryModel), "kind")) == set(QUERIES)
    assert set(by_tag(members(expression_models.NumberModel), "op")) == set(NUMBERS)
    assert set(by_tag(members(expression_models.ConditionModel), "op")) == set(CONDITIONS)


def test_unknown_fields_and_wrong_types_are_refused_by_the_models() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(QueryModel)
    good = {"kind": "count", "epsilon": "1/10"}
    assert adapter.validate_python(good).epsilon == "1/10"
    for bad in ({**good, "sql": "x"}, {**good, "epsilon": [1]}, {"kind": "drop", "epsilon": 1}):
        with pytest.raises(ValueError, match=r"valid|permitted|found"):
            adapter.validate_python(bad)
