"""What owners do: open datasets with a budget, enter analysts, give them sub-budgets and tokens.

The terminal and the web page go through the same functions. Over the network a source is the
name of a file inside a directory that was declared at the start, and nothing else.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from discreet.curator.dataset import CuratedDataset
from discreet.curator.service.opened import curated
from discreet.curator.service.registry import Registered, Registry, dataset_name
from discreet.data import Categorical, Schema
from discreet.errors import InvalidValue, LedgerMissing, NotApplicable
from discreet.ledger import Ledger
from discreet.privacy import Filter, Relation

__all__ = ["copies_of", "file_inside", "give_budget", "open_dataset"]


def open_dataset(
    ledger: Ledger,
    registry: Registry,
    name: str,
    *,
    schema: Schema,
    source: str,
    table: str | None = None,
    engine: str = "duckdb",
    epsilon: object = None,
    delta: object = 0,
) -> CuratedDataset:
    """Register a source and open its budget; every charge will have to name an analyst.

    The source is opened first, so that what cannot be served has no budget. Without
    ``epsilon`` the ledger must hold a budget of that name already, with the unit of the schema
    and with analysts required: that is how work goes on after a crash between the two steps.
    """
    dataset_name("name", name)
    _require_bounds(schema)
    if epsilon is not None:
        Filter(epsilon=epsilon, delta=delta)
    entry = Registered(name, schema.to_toml(), source, table, engine)
    registry.check_free(name, source=source, table=table)
    opened = curated(entry)
    opened.prepare()
    if epsilon is None:
        view = ledger.show(name)
        fits = view.unit == schema.unit and view.relation is Relation.ADD_REMOVE
        if not fits or "analyst" not in view.required:
            raise InvalidValue(
                "name",
                name,
                f"a budget of the ledger for the unit {schema.unit!r} under add_remove that asks "
                "every charge for its analyst",
            )
    else:
        ledger.create_dataset(
            name, epsilon=epsilon, delta=delta, unit=schema.unit, required=["analyst"]
        )
    registry.add_dataset(name, schema=entry.schema, source=source, table=table, engine=engine)
    return opened


def _require_bounds(schema: Schema) -> None:
    """Raise for undeclared bounds; undeclared categories are selected privately by a query."""
    open_ = [
        name for name in schema.incomplete if not isinstance(schema.columns[name], Categorical)
    ]
    if open_:
        raise NotApplicable(
            "no bounds are declared for "
            + ", ".join(map(repr, open_))
            + ": declare them, or learn them privately with complete_schema; they are not read off "
            "the data"
        )


def copies_of(registry: Registry, source: str) -> list[str]:
    """The served datasets whose file has the same content as ``source``.

    A copy under another name is a second budget for the same people, which nobody adds up.
    """
    place = Path(source)
    if not place.is_file():
        return []
    size, digest, found = place.stat().st_size, None, []
    for known in registry.datasets():
        other = Path(known.source)
        if known.source == source or not other.is_file() or other.stat().st_size != size:
            continue
        digest = digest or _digest(place)
        if _digest(other) == digest:
            found.append(known.name)
    return found


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def give_budget(
    ledger: Ledger,
    registry: Registry,
    dataset: str,
    *,
    analyst: str | None = None,
    project: str | None = None,
    epsilon: object,
    delta: object = 0,
) -> None:
    """Open the sub-budget of an analyst or of a project; it restricts and never adds."""
    registry.dataset(dataset)
    if analyst is not None and analyst not in registry.analysts():
        raise LedgerMissing(f"there is no analyst {analyst!r}; nothing was changed")
    ledger.create_budget(dataset, analyst=analyst, project=project, epsilon=epsilon, delta=delta)


def file_inside(directory: str | None, name: str) -> str:
    """The path of a file in the declared directory, however its name is written."""
    if directory is None:
        raise NotApplicable(
            "this service has no directory of data (discreet serve --data): register datasets at "
            "the terminal"
        )
    expected = "the name of a file in the directory of data of this service"
    base = Path(directory).resolve()
    try:
        path = (base / name).resolve()
        if path.is_relative_to(base) and path.is_file():
            return str(path)
    except (OSError, ValueError):
        pass  # a name that no file can have
    raise InvalidValue("source", name, expected)
