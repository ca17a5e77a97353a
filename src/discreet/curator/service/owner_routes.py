"""What owners of the data can do over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from fastapi.responses import JSONResponse

from discreet.curator.service import enrolment, problems
from discreet.curator.service.analyst_routes import PROBLEMS, DatasetPath, HolderOf
from discreet.curator.service.bodies import (
    AnalystBody,
    AnalystsBody,
    BudgetBody,
    DatasetBody,
    FactsBody,
    IssuedBody,
    NewTokenBody,
    OpenedBody,
    TokensBody,
)
from discreet.curator.service.office import Office
from discreet.curator.service.registry import Holder
from discreet.curator.service.runner import Runner, Unanswered
from discreet.data import Schema

__all__ = ["owner_router"]


async def must_own(holder: HolderOf) -> Holder:
    """Let owners through and nobody else."""
    if not holder.owns:
        raise Unanswered(problems.FORBIDDEN)
    return holder


Owner = Annotated[Holder, Depends(must_own)]


def owner_router(office: Office, runner: Runner) -> APIRouter:
    """The routes for owners."""
    router = APIRouter(
        prefix="/v1", responses=PROBLEMS, tags=["owner"], dependencies=[Depends(must_own)]
    )

    @router.post("/datasets", status_code=201, response_model=OpenedBody)
    async def open_dataset(body: DatasetBody, owner: Owner) -> dict[str, Any]:
        """Serve a file of the directory of data, with a budget that cannot be raised later."""

        def work() -> dict[str, Any]:
            source = enrolment.file_inside(office.settings.data, body.source)
            copies = enrolment.copies_of(office.registry, source)
            opened = enrolment.open_dataset(
                office.ledger,
                office.registry,
                body.name,
                schema=Schema.from_toml(body.schema_),
                source=source,
                table=body.table,
                epsilon=body.epsilon,
                delta=body.delta,
            )
            office.datasets.adopt(opened)
            return {**office.facts(owner, body.name), "copies": copies}

        return await runner.run(work)

    @router.post("/datasets/{dataset}/budgets", status_code=201, response_model=FactsBody)
    async def give_budget(dataset: DatasetPath, body: BudgetBody, owner: Owner) -> dict[str, Any]:
        """Give an analyst or a project a budget within that of the dataset."""

        def work() -> dict[str, Any]:
            enrolment.give_budget(
                office.ledger,
                office.registry,
                dataset,
                analyst=body.analyst,
                project=body.project,
                epsilon=body.epsilon,
                delta=body.delta,
            )
            return office.facts(owner, dataset)

        return await runner.run(work)

    @router.get("/datasets/{dataset}/export")
    async def export(dataset: DatasetPath, owner: Owner) -> dict[str, Any]:
        """The whole chain of a dataset, to be checked without the service."""

        def work() -> dict[str, Any]:
            office.facts(owner, dataset)
            return office.ledger.export(dataset)

        return await runner.run(work)

    @router.get("/analysts")
    async def analysts() -> AnalystsBody:
        """The names of all analysts."""
        return AnalystsBody(analysts=await runner.run(office.registry.analysts))

    @router.post("/analysts", status_code=201)
    async def add_analyst(body: AnalystBody) -> AnalystsBody:
        """Enter an analyst."""
        await runner.run(office.registry.add_analyst, body.name)
        return AnalystsBody(analysts=await runner.run(office.registry.analysts))

    @router.get("/tokens", response_model=TokensBody)
    async def tokens() -> dict[str, Any]:
        """What is known of all tokens."""
        return {"tokens": [asdict(one) for one in await runner.run(office.registry.tokens)]}

    @router.post("/tokens", status_code=201, response_model=IssuedBody)
    async def issue(body: NewTokenBody) -> dict[str, Any]:
        """Make a token; its text is in this response and nowhere else."""

        def work() -> dict[str, Any]:
            for name in body.datasets:
                office.registry.dataset(name)
            text, token = office.registry.issue(
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
        await runner.run(office.registry.revoke, token)
        left = await runner.run(office.registry.tokens)
        return JSONResponse({"tokens": [asdict(one) for one in left]})

    return router
