"""Filters and derived columns as OpenAPI describes them; a test holds them to the real forms.

What these models let through is read again by :mod:`discreet.curator.expressions`, which decides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ConditionModel", "Exact", "Form", "NumberModel", "Text"]

Text = Annotated[str, Field(min_length=1, max_length=200)]
ExactText = Annotated[
    str,
    Field(
        pattern=r"^[+-]?[0-9]{1,18}(\.[0-9]{1,18})?(/[0-9]{1,18})?$",
        description="An exact number: 3, 0.1 or 1/3.",
        examples=["1/10"],
    ),
]
Exact = ExactText | int | float


class Form(BaseModel):
    """An object with exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ColumnModel(Form):
    """A column of the schema."""

    op: Literal["column"]
    name: Text


class ValueModel(Form):
    """A number that the query states."""

    op: Literal["value"]
    value: Exact


class DayModel(Form):
    """A date, as the number of days since 1970-01-01."""

    op: Literal["day"]
    day: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]


class PairModel(Form):
    """Arithmetic on two numbers, or the smaller or larger of them."""

    op: Literal["add", "subtract", "multiply", "least", "greatest"]
    left: NumberModel
    right: NumberModel


class DivideModel(Form):
    """A quotient cut to bounds, with a declared result where the divisor is zero."""

    op: Literal["divide"]
    left: NumberModel
    right: NumberModel
    lower: Exact
    upper: Exact
    default: Exact


class AbsoluteModel(Form):
    """The absolute value."""

    op: Literal["absolute"]
    of: NumberModel


class ClipModel(Form):
    """A number cut to bounds."""

    op: Literal["clip"]
    of: NumberModel
    lower: Exact
    upper: Exact


class BucketModel(Form):
    """A number rounded down to a multiple of a width."""

    op: Literal["bucket"]
    of: NumberModel
    width: Exact


class IfModel(Form):
    """One number where a condition holds, another one elsewhere."""

    op: Literal["if"]
    when: ConditionModel
    then: NumberModel
    otherwise: NumberModel


class CaseModel(Form):
    """A text and the number that stands for it."""

    op: Literal["case"]
    text: Text
    value: Exact


class LookupModel(Form):
    """A number for each of some texts of a column, and a default."""

    op: Literal["lookup"]
    column: Text
    cases: Annotated[list[CaseModel], Field(min_length=1, max_length=500)]
    default: Exact


class ToNumberModel(Form):
    """The number that a text spells, cut to bounds, with a default."""

    op: Literal["to_number"]
    column: Text
    lower: Exact
    upper: Exact
    default: Exact


class CompareModel(Form):
    """A comparison of two numbers."""

    op: Literal["compare"]
    how: Literal["<", "<=", "==", "!=", ">=", ">"]
    left: NumberModel
    right: NumberModel


class OneOfModel(Form):
    """Whether the text of a column is one of some texts."""

    op: Literal["one_of"]
    column: Text
    values: Annotated[list[Text], Field(min_length=1, max_length=500)]


class StartsWithModel(Form):
    """Whether the text of a column begins with a prefix."""

    op: Literal["starts_with"]
    column: Text
    prefix: Text


class SeveralModel(Form):
    """Whether all, or any, of some conditions hold."""

    op: Literal["all", "any"]
    of: Annotated[list[ConditionModel], Field(min_length=1, max_length=100)]


class NotModel(Form):
    """Whether a condition does not hold."""

    op: Literal["not"]
    of: ConditionModel


NumberModel = Annotated[
    ColumnModel
    | ValueModel
    | DayModel
    | PairModel
    | DivideModel
    | AbsoluteModel
    | ClipModel
    | BucketModel
    | IfModel
    | LookupModel
    | ToNumberModel,
    Field(discriminator="op"),
]
ConditionModel = Annotated[
    CompareModel | OneOfModel | StartsWithModel | SeveralModel | NotModel,
    Field(discriminator="op"),
]

for _form in (PairModel, DivideModel, AbsoluteModel, ClipModel, BucketModel, IfModel):
    _form.model_rebuild()
for _condition in (CompareModel, SeveralModel, NotModel):
    _condition.model_rebuild()
