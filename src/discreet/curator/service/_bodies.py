"""What leaves the service: problems, and the bodies of requests and responses for OpenAPI.

Every error that an analyst can cause follows from the question, the schema, the token or the
budget. Whatever else goes wrong has one fixed text, because its own words might speak of a record.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from discreet.curator.service._registry import LONGEST_DAYS
from discreet.errors import (
    BudgetExceeded,
    DiscreetError,
    InvalidValue,
    KeyConflict,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerExists,
    LedgerFull,
    LedgerMissing,
    MechanismHalted,
    NotApplicable,
    SchemaError,
)

_LONGEST = 500


class Problem(NamedTuple):
    """What is sent instead of an answer."""

    status: int
    kind: str
    message: str
    argument: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The body of the response."""
        return {"kind": self.kind, "message": self.message, "argument": self.argument}


class Unanswered(Exception):
    """A problem on its way to the client."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.kind)
        self.problem = problem


UNKNOWN_TOKEN = Problem(401, "unauthorized", "this token is not valid (any more)")
NO_TOKEN = Problem(401, "unauthorized", "send the header Authorization: Bearer <token>")
FORBIDDEN = Problem(403, "forbidden", "this token is not for that")
TOO_FAST = Problem(429, "too_many_requests", "too many requests; come again later")
TOO_LARGE = Problem(413, "too_large", "the request is larger than this service accepts")
TOO_SLOW = Problem(408, "too_slow", "the request took too long to arrive")
FULL = Problem(507, "full", "the disk of the service is full; nothing was charged")
DAMAGED = Problem(
    503, "damaged", "the ledger is damaged; no question is answered until it is mended"
)
BUSY = Problem(503, "busy", "the service has too much to do; nothing was charged, come again")
FAILED = Problem(500, "failed", "the service failed; what was charged stays charged")

_KINDS: tuple[tuple[type[DiscreetError], int, str], ...] = (
    (BudgetExceeded, 409, "budget_exceeded"),
    (KeyConflict, 409, "key_conflict"),
    (LedgerExists, 409, "exists"),
    (MechanismHalted, 409, "halted"),
    (LedgerMissing, 404, "missing"),
    (InvalidValue, 422, "invalid"),
    (NotApplicable, 422, "invalid"),
    (SchemaError, 422, "invalid"),
)


def problem_of(error: BaseException) -> Problem:
    """What to send for an error; a kind that is not known here has the fixed text."""
    # Their own words name files of the server.
    if isinstance(error, LedgerFull):
        return FULL
    # Its files were replaced, moved or deleted while in use, or cannot be opened.
    if isinstance(error, LedgerCorrupt) or type(error) is LedgerError:
        return DAMAGED
    if isinstance(error, LedgerBusy):
        return BUSY
    for type_, status, kind in _KINDS:
        if isinstance(error, type_):
            argument = error.argument if isinstance(error, InvalidValue) else None
            return Problem(status, kind, _short(str(error)), argument)
    return FAILED


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


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


class ExpectedErrorBody(BaseModel):
    """How far a number will be off; null where public facts do not tell."""

    label: str
    half_width: float | None
    confidence: float


class QuoteBody(BaseModel):
    """What a query costs, from public facts alone."""

    loss: dict[str, Any]
    epsilon: str
    delta: str
    expected_error: list[ExpectedErrorBody]
    about: str
    columns: list[str]
    answered_before: bool


class BarBody(BaseModel):
    """Error bars of one number; those of one answer hold together at the confidence."""

    label: str
    low: float | None
    high: float | None
    confidence: float


class AnswerBody(BaseModel):
    """An answer: its value, its error bars, its loss and the receipt of its charge."""

    dataset: str
    query: dict[str, Any]
    value: Any
    errors: list[BarBody]
    loss: dict[str, Any]
    receipt: ReceiptBody
    answered_before: bool
    at: str
    about: str
