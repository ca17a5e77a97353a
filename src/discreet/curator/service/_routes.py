"""What holders of tokens can ask for over HTTP, and the threads that do the work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Annotated, Any, ParamSpec, TypeVar, final

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import JSONResponse

from discreet._json import read_json
from discreet.curator.service import _operations
from discreet.curator.service._bodies import (
    FAILED,
    FORBIDDEN,
    AnalystBody,
    AnalystsBody,
    AnswerBody,
    BudgetBody,
    DatasetBody,
    DatasetsBody,
    FactsBody,
    HistoryBody,
    IssuedBody,
    NewTokenBody,
    OpenedBody,
    Problem,
    ProblemBody,
    QuoteBody,
    ReceiptBody,
    TokensBody,
    Unanswered,
    VerdictBody,
    VerifyBody,
    WhoBody,
    problem_of,
)
from discreet.curator.service._gate import BODY, HOLDER
from discreet.curator.service._operations import Operations
from discreet.curator.service._registry import Holder
from discreet.data import Schema
from discreet.errors import SchemaError

P = ParamSpec("P")
T = TypeVar("T")
_log = logging.getLogger("discreet.curator")


@final
class Runner:
    """A pool of threads for the work of one process."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="curator")

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do some work in a thread; whatever goes wrong becomes ``Unanswered``."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the text of any other error stays here
            problem = problem_of(error)
            if problem is FAILED:
                # The type and the place, never the text: it may hold something of a record.
                _log.error("%s at %s", type(error).__name__, _place(error))
            raise Unanswered(problem) from None

    def close(self) -> None:
        """Finish what has begun and take no more work."""
        self._pool.shutdown(wait=True)


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "an unknown place"
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


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
        raise Unanswered(Problem(422, "invalid", text)) from None


def query_of(request: Request) -> Any:
    """The query that was sent, still as JSON; its form reads it."""
    body = body_of(request)
    if not isinstance(body, dict) or set(body) != {"query"}:
        text = "the request: expected an object with the field query and no other"
        raise Unanswered(Problem(422, "invalid", text, "query"))
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


def analyst_router(operations: Operations, runner: Runner) -> APIRouter:
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
            quantum=operations.settings.quantum,
            settle=operations.settings.quote_delay,
            may_register=holder.owns and operations.settings.data is not None,
        )

    @router.get("/datasets", response_model=DatasetsBody)
    async def datasets(holder: HolderOf) -> dict[str, Any]:
        """All datasets that exist for this token."""
        return {"datasets": await runner.run(operations.overview, holder)}

    @router.get("/datasets/{dataset}", response_model=FactsBody)
    async def facts(dataset: DatasetPath, holder: HolderOf) -> dict[str, Any]:
        """The public facts of a dataset, and its budgets."""
        return await runner.run(operations.facts, holder, dataset)

    @router.post("/datasets/{dataset}/quote", response_model=QuoteBody, openapi_extra=_ASKED)
    async def quote(request: Request, dataset: DatasetPath, holder: HolderOf) -> JSONResponse:
        """What a query would cost, and its expected error, from public facts alone."""
        query = query_of(request)
        return JSONResponse(await runner.run(operations.quote, holder, dataset, query))

    @router.post("/datasets/{dataset}/ask", response_model=AnswerBody, openapi_extra=_ASKED)
    async def ask(
        request: Request,
        dataset: DatasetPath,
        holder: HolderOf,
        idempotency_key: KeyHeader = None,
    ) -> JSONResponse:
        """Charge the budgets of the token, then answer; a charge is never undone."""
        if holder.analyst is None:
            raise Unanswered(FORBIDDEN)
        query = query_of(request)
        answer = await runner.run(operations.ask, holder, dataset, query, key=idempotency_key)
        return JSONResponse(answer)

    @router.get("/datasets/{dataset}/history", response_model=HistoryBody)
    async def history(
        dataset: DatasetPath,
        holder: HolderOf,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        before: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    ) -> dict[str, Any]:
        """Charges, the newest first; analysts see their own."""
        return await runner.run(operations.history, holder, dataset, limit=limit, before=before)

    @router.get("/datasets/{dataset}/receipts/{entry}", response_model=ReceiptBody)
    async def receipt(
        dataset: DatasetPath, entry: Annotated[int, Path(ge=0, le=2**62)], holder: HolderOf
    ) -> JSONResponse:
        """One entry of the chain, to be kept elsewhere."""
        return JSONResponse(await runner.run(operations.receipt, holder, dataset, entry))

    @router.post("/verify", response_model=VerdictBody)
    async def verify(
        request: Request,
        body: VerifyBody,  # noqa: ARG001 - its form is checked; its text is read exactly below
        holder: HolderOf,
    ) -> dict[str, Any]:
        """Replay the ledger, and look for receipts on it."""
        given = body_of(request).get("receipts", [])
        return await runner.run(operations.verify, holder, given)

    return router


async def must_own(holder: HolderOf) -> Holder:
    """Let only owners through."""
    if not holder.owns:
        raise Unanswered(FORBIDDEN)
    return holder


Owner = Annotated[Holder, Depends(must_own)]


def owner_router(operations: Operations, runner: Runner) -> APIRouter:
    """The routes for owners."""
    router = APIRouter(
        prefix="/v1", responses=PROBLEMS, tags=["owner"], dependencies=[Depends(must_own)]
    )

    @router.post("/datasets", status_code=201, response_model=OpenedBody)
    async def open_dataset(body: DatasetBody, owner: Owner) -> dict[str, Any]:
        """Serve a file of the directory of data, with a budget that cannot be raised later."""

        def work() -> dict[str, Any]:
            source = _operations.file_inside(operations.settings.data, body.source)
            copies = _operations.find_copies(operations.registry, source)
            opened = _operations.open_dataset(
                operations.ledger,
                operations.registry,
                body.name,
                schema=Schema.from_toml(body.schema_),
                source=source,
                table=body.table,
                epsilon=body.epsilon,
                delta=body.delta,
                keep=operations.settings.keep,
            )
            operations.datasets.adopt(opened)
            return {**operations.facts(owner, body.name), "copies": copies}

        return await runner.run(work)

    @router.post("/datasets/{dataset}/budgets", status_code=201, response_model=FactsBody)
    async def give_budget(dataset: DatasetPath, body: BudgetBody, owner: Owner) -> dict[str, Any]:
        """Give an analyst or a project a budget within that of the dataset."""

        def work() -> dict[str, Any]:
            _operations.give_budget(
                operations.ledger,
                operations.registry,
                dataset,
                analyst=body.analyst,
                project=body.project,
                epsilon=body.epsilon,
                delta=body.delta,
            )
            return operations.facts(owner, dataset)

        return await runner.run(work)

    @router.get("/datasets/{dataset}/export")
    async def export(dataset: DatasetPath, owner: Owner) -> dict[str, Any]:
        """The whole chain of a dataset, to be checked without the service."""

        def work() -> dict[str, Any]:
            operations.facts(owner, dataset)
            return operations.ledger.export(dataset)

        return await runner.run(work)

    @router.get("/analysts")
    async def analysts() -> AnalystsBody:
        """The names of all analysts."""
        return AnalystsBody(analysts=await runner.run(operations.registry.analysts))

    @router.post("/analysts", status_code=201)
    async def add_analyst(body: AnalystBody) -> AnalystsBody:
        """Enter an analyst."""
        await runner.run(operations.registry.add_analyst, body.name)
        return AnalystsBody(analysts=await runner.run(operations.registry.analysts))

    @router.get("/tokens", response_model=TokensBody)
    async def tokens() -> dict[str, Any]:
        """What is known of all tokens."""
        return {"tokens": [asdict(one) for one in await runner.run(operations.registry.tokens)]}

    @router.post("/tokens", status_code=201, response_model=IssuedBody)
    async def issue(body: NewTokenBody) -> dict[str, Any]:
        """Make a token; its text is in this response and nowhere else."""

        def work() -> dict[str, Any]:
            for name in body.datasets:
                operations.registry.dataset(name)
            text, token = operations.registry.issue(
                body.role,
                analyst=body.analyst,
                project=body.project,
                datasets=body.datasets,
                days=body.days,
                note=body.note,
            )
            return {"text": text, "token": asdict(token)}

        return await runner.run(work)

    @router.delete("/tokens/{token}", response_model=TokensBody)
    async def revoke(token: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]) -> JSONResponse:
        """End a token at once."""
        await runner.run(operations.registry.revoke, token)
        left = await runner.run(operations.registry.tokens)
        return JSONResponse({"tokens": [asdict(one) for one in left]})

    return router
