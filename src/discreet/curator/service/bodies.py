"""The bodies of requests and responses, as OpenAPI describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from discreet.curator.service.registry import LONGEST_DAYS

__all__ = [
    "AnalystBody",
    "AnalystsBody",
    "BudgetBody",
    "DatasetBody",
    "DatasetsBody",
    "FactsBody",
    "HealthBody",
    "HistoryBody",
    "IssuedBody",
    "NewTokenBody",
    "ProblemBody",
    "ReceiptBody",
    "TokensBody",
    "VerdictBody",
    "VerifyBody",
    "WhoBody",
]

ExactText = Annotated[
    str,
    Field(
        pattern=r"^[+-]?[0-9]{1,18}(\.[0-9]{1,18})?(/[0-9]{1,18})?$",
        description="An exact number: 3, 0.1 or 1/3.",
        examples=["1/10"],
    ),
]
Exact = ExactText | int | float
Name = Annotated[str, Field(min_length=1, max_length=200)]
DatasetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Form(BaseModel):
    """An object with exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ProblemBody(BaseModel):
    """What is sent instead of an answer."""

    kind: str
    message: str
    argument: str | None


class HealthBody(BaseModel):
    """That the service runs, and that its ledger fits together."""

    status: Literal["ok"]
    version: str


class WhoBody(BaseModel):
    """Who holds the token, and how the service behaves."""

    role: Literal["owner", "analyst"]
    analyst: str | None
    project: str | None
    datasets: list[str]
    expires: str
    quantum: float
    settle: float
    may_register: bool


class BudgetView(BaseModel):
    """A budget as it stands; amounts are exact, as text."""

    label: str
    epsilon: str
    delta: str
    kind: str
    charges: int
    spent: dict[str, str]
    remaining: dict[str, str]
    used: float


class FactsBody(BaseModel):
    """The public facts of a dataset, and the budgets that concern the holder.

    ``entries`` and ``head`` of the chain are for owners.
    """

    name: str
    unit: str
    relation: str
    entries: int | None
    head: str | None
    facts: dict[str, Any]
    budgets: list[BudgetView]


class OpenedBody(FactsBody):
    """A dataset that is served from now on; ``copies`` are served files of the same content."""

    copies: list[str]


class DatasetsBody(BaseModel):
    """All datasets that exist for the token."""

    datasets: list[FactsBody]


class ChargeRow(BaseModel):
    """One charge; its ``outcome`` is for owners."""

    entry: int
    at: str
    purpose: str | None
    analyst: str | None
    project: str | None
    loss: dict[str, Any]
    outcome: str | None
    spent: dict[str, dict[str, str]]
    hash: str


class HistoryBody(BaseModel):
    """Charges, the newest first; ``more`` says whether there are older ones."""

    dataset: str
    charges: list[ChargeRow]
    more: bool


class ReceiptBody(BaseModel):
    """An entry of the ledger with its hash, to be kept elsewhere.

    For somebody else's charge it is a reference: the number and the hash of the entry.
    """

    schema_: str = Field(alias="schema")
    version: int
    hash: str
    entry: dict[str, Any]


class ReceiptForm(Form):
    """A receipt, or a reference to an entry, that must be on the chain."""

    schema_: Annotated[
        Literal["discreet.ledger.receipt", "discreet.curator.reference"], Field(alias="schema")
    ]
    version: Literal[1]
    hash: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    entry: dict[str, Any]


class VerifyBody(Form):
    """Receipts that the ledger must still hold."""

    receipts: Annotated[list[ReceiptForm], Field(max_length=50)] = Field(default_factory=list)


class ProblemRow(BaseModel):
    """One thing that does not fit."""

    dataset: str
    entry: int | None
    what: str


class VerdictBody(BaseModel):
    """What a replay of the ledger found; the number of ``entries`` is for owners."""

    ok: bool
    entries: int | None
    problems: list[ProblemRow]


class DatasetBody(Form):
    """A dataset to be served; without ``epsilon`` its budget is in the ledger already."""

    name: DatasetName
    schema_: Annotated[
        str, Field(alias="schema", min_length=1, max_length=50_000, description="TOML")
    ]
    source: Annotated[str, Field(min_length=1, max_length=500, description="A file name")]
    table: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    epsilon: Exact | None = None
    delta: Exact = 0


class AnalystBody(Form):
    """An analyst to be entered."""

    name: Name


class AnalystsBody(BaseModel):
    """All analysts."""

    analysts: list[str]


class BudgetBody(Form):
    """A sub-budget for one analyst or one project."""

    analyst: Name | None = None
    project: Name | None = None
    epsilon: Exact
    delta: Exact = 0


class NewTokenBody(Form):
    """A token to be made."""

    role: Literal["owner", "analyst"]
    analyst: Name | None = None
    project: Name | None = None
    datasets: Annotated[list[Name], Field(max_length=100)] = Field(default_factory=list)
    days: Annotated[int, Field(ge=1, le=LONGEST_DAYS)] = 90
    note: Annotated[str, Field(max_length=200)] = ""


class TokenView(BaseModel):
    """What is known of a token; never the token itself."""

    id: str
    role: str
    analyst: str | None
    project: str | None
    datasets: list[str]
    note: str
    created: str
    expires: str
    revoked: str | None


class IssuedBody(BaseModel):
    """A new token; its text is shown this once."""

    text: str
    token: TokenView


class TokensBody(BaseModel):
    """All tokens, the newest first."""

    tokens: list[TokenView]
