"""What analysts (and owners) can ask for over HTTP."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse

from discreet._json import read_json
from discreet.curator.service import problems
from discreet.curator.service.answer_bodies import AnswerBody, QuoteBody
from discreet.curator.service.bodies import (
    DatasetsBody,
    FactsBody,
    HistoryBody,
    ProblemBody,
    ReceiptBody,
    VerdictBody,
    VerifyBody,
    WhoBody,
)
from discreet.curator.service.gate import BODY, HOLDER
from discreet.curator.service.office import Office
from discreet.curator.service.registry import Holder
from discreet.curator.service.runner import Runner, Unanswered
from discreet.errors import SchemaError

__all__ = ["PROBLEMS", "DatasetPath", "HolderOf", "analyst_router"]


async def holder_of(request: Request) -> Holder:
    """The holder that the gate has let in; asynchronous, as it needs no thread."""
    holder: Holder = request.scope[HOLDER]
    return holder


def body_of(request: Request) -> Any:
    """The JSON that was sent, read strictly: no field twice, no NaN."""
    body: bytes = request.scope[BODY]
    try:
        return read_json(body, "the request")
    except SchemaError as error:
        text = " ".join(str(error).split())[:200]
        raise Unanswered(problems.Problem(422, "invalid", text)) from None


def query_of(request: Request) -> Any:
    """The query that was sent, still as JSON; its form reads it."""
    body = body_of(request)
    if not isinstance(body, dict) or set(body) != {"query"}:
        text = "the request: expected an object with the field query and no other"
        raise Unanswered(problems.Problem(422, "invalid", text, "query"))
    return body["query"]


ASK_BODY = {
    "description": "A query.",
    "type": "object",
    "properties": {"query": {"$ref": "#/components/schemas/Query"}},
    "required": ["query"],
    "additionalProperties": False,
}
_ASKED = {"requestBody": {"required": True, "content": {"application/json": {"schema": ASK_BODY}}}}
HolderOf = Annotated[Holder, Depends(holder_of)]
DatasetPath = Annotated[str, Path(min_length=1, max_length=64)]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="The same request under the same key is charged once and answered the same.",
    ),
]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemBody, "description": text}
    for status, text in {
        401: "no token, or one that is not valid",
        403: "a token for something else",
        404: "nothing of that name for this token",
        408: "the request took too long to arrive",
        409: "refused by the budget, or in conflict with what there is",
        413: "the request is too large",
        422: "the request says something that is not possible",
        429: "too many requests",
        500: "the service failed",
        503: "the service is busy",
    }.items()
}


def analyst_router(office: Office, runner: Runner) -> APIRouter:
    """The routes for everybody who has a token."""
    router = APIRouter(prefix="/v1", responses=PROBLEMS, tags=["analyst"])

    @router.get("/whoami")
    async def whoami(holder: HolderOf) -> WhoBody:
        """Who holds this token, and what it opens."""
        return WhoBody(
            role="owner" if holder.owns else "analyst",
            analyst=holder.analyst,
            project=holder.project,
            datasets=list(holder.datasets),
            expires=holder.expires,
            quantum=office.settings.quantum,
            settle=office.settings.settle,
            may_register=holder.owns and office.settings.data is not None,
        )

    @router.get("/datasets", response_model=DatasetsBody)
    async def datasets(holder: HolderOf) -> dict[str, Any]:
        """All datasets that exist for this token."""
        return {"datasets": await runner.run(office.overview, holder)}

    @router.get("/datasets/{dataset}", response_model=FactsBody)
    async def facts(dataset: DatasetPath, holder: HolderOf) -> dict[str, Any]:
        """The public facts of a dataset, and its budgets."""
        return await runner.run(office.facts, holder, dataset)

    @router.post("/datasets/{dataset}/quote", response_model=QuoteBody, openapi_extra=_ASKED)
    async def quote(request: Request, dataset: DatasetPath, holder: HolderOf) -> JSONResponse:
        """What a query would cost, and its expected error, from public facts alone."""
        query = query_of(request)
        return JSONResponse(await runner.run(office.quote, holder, dataset, query))

    @router.post("/datasets/{dataset}/ask", response_model=AnswerBody, openapi_extra=_ASKED)
    async def ask(
        request: Request,
        dataset: DatasetPath,
        holder: HolderOf,
        idempotency_key: KeyHeader = None,
    ) -> JSONResponse:
        """Charge the budgets of the token, then answer; a charge is never undone."""
        if holder.analyst is None:
            raise Unanswered(problems.FORBIDDEN)
        query = query_of(request)
        answer = await runner.run(office.ask, holder, dataset, query, key=idempotency_key)
        return JSONResponse(answer)

    @router.get("/datasets/{dataset}/history", response_model=HistoryBody)
    async def history(
        dataset: DatasetPath,
        holder: HolderOf,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    ) -> dict[str, Any]:
        """Charges, the newest first; analysts see their own."""
        return await runner.run(office.history, holder, dataset, limit=limit, before=before)

    @router.get("/datasets/{dataset}/receipts/{entry}", response_model=ReceiptBody)
    async def receipt(
        dataset: DatasetPath, entry: Annotated[int, Path(ge=0, le=2**62)], holder: HolderOf
    ) -> JSONResponse:
        """One entry of the chain, to be kept elsewhere."""
        return JSONResponse(await runner.run(office.receipt, holder, dataset, entry))

    @router.post("/verify", response_model=VerdictBody)
    async def verify(
        request: Request,
        body: VerifyBody,  # noqa: ARG001 - its form is checked; its text is read exactly below
        holder: HolderOf,
    ) -> dict[str, Any]:
        """Replay the ledger, and look for receipts on it."""
        given = body_of(request).get("receipts", [])
        return await runner.run(office.verify, holder, given)

    return router
