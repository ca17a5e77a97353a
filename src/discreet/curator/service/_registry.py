"""The registry: which datasets are served, who may ask, and with which tokens.

Budgets are not here: they are in the ledger, where they cannot be raised. A token says who its
holder is, which datasets exist for it and which sub-budgets its charges count against.

A token reads ``dsc_<id>_<secret>``: 256 random bits that are shown once and stored as a hash. The
id finds the row; the SHA-256 of the secret is compared with the row in constant time. A slow hash
is for passwords that can be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, final

from discreet import _validate
from discreet._store import Session
from discreet.errors import InvalidValue, LedgerExists, LedgerMissing
from discreet.ledger import Ledger, check_name

_FORM = re.compile(r"dsc_([0-9a-f]{16})_([0-9a-f]{64})")
NOBODY = hashlib.sha256(b"no token has this digest").hexdigest()


class Secret(NamedTuple):
    """A token in two parts."""

    id: str
    secret: str

    def as_text(self) -> str:
        """The token as its holder keeps it."""
        return f"dsc_{self.id}_{self.secret}"


def new_secret() -> Secret:
    """Make a new token; ``secrets`` draws from the cryptographic source of the system."""
    return Secret(secrets.token_hex(8), secrets.token_hex(32))


def parse(text: str) -> Secret | None:
    """Read a token; None if the text has not the form of one.

    >>> parse("dsc_0123_4567") is None
    True
    >>> made = new_secret()
    >>> parse(made.as_text()) == made
    True
    """
    match = _FORM.fullmatch(text)
    return None if match is None else Secret(match[1], match[2])


def digest_of(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode("ascii")).hexdigest()


def matches(secret: str, stored: str | None) -> bool:
    """Say whether a secret has the stored digest, in a time that does not tell how nearly.

    Without a stored digest the comparison is made all the same, and fails.
    """
    same = hmac.compare_digest(digest_of(secret), NOBODY if stored is None else stored)
    return same and stored is not None


OWNER, ANALYST = "owner", "analyst"
LONGEST_DAYS = 3660
_LONGEST_SOURCE = 4000
_SERVED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Registered:
    """A dataset as it was registered."""

    name: str
    schema: str
    source: str
    table: str | None
    engine: str
    created: str = ""


@dataclass(frozen=True)
class Holder:
    """Who holds a token that is valid now, and what it opens."""

    token: str
    role: str
    analyst: str | None
    project: str | None
    datasets: tuple[str, ...]
    expires: str

    @property
    def owns(self) -> bool:
        """Whether this is an owner of the data."""
        return self.role == OWNER

    def may_see(self, dataset: str) -> bool:
        """Whether a dataset exists for this holder."""
        return self.owns or dataset in self.datasets


@dataclass(frozen=True)
class Token:
    """What is known of a token; never the token itself."""

    id: str
    role: str
    analyst: str | None
    project: str | None
    datasets: tuple[str, ...]
    note: str
    created: str
    expires: str
    revoked: str | None


@final
class Registry:
    """Datasets, analysts and tokens, in the store of a ledger.

    >>> import tempfile
    >>> registry = Registry(Ledger.create(tempfile.mkdtemp() + "/study.ledger"))
    >>> registry.add_analyst("ann")
    >>> text, token = registry.issue("analyst", analyst="ann", datasets=["census"], days=30)
    >>> registry.authenticate(text).analyst
    'ann'
    >>> registry.revoke(token.id)
    >>> registry.authenticate(text) is None
    True
    """

    def __init__(
        self, ledger: Ledger, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = ledger.store
        self._clock = clock

    @property
    def local(self) -> bool:
        """Whether reading never waits for a network."""
        return self._store.local

    # --- datasets ----------------------------------------------------------------------

    def add_dataset(
        self, name: str, *, schema: str, source: str, engine: str, table: str | None = None
    ) -> None:
        """Register a dataset; one source has one name, and so one budget."""
        dataset_name("name", name)
        if not source or len(source) > _LONGEST_SOURCE or not source.isprintable():
            raise InvalidValue("source", source[:80], "a printable path or address")
        place = (source, table or "")
        values = (name, schema, *place, engine, _text(self._clock()))
        with self._store.writing() as session:
            if not session.run(
                f"INSERT INTO served_datasets ({_DATASET}) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT DO NOTHING",
                values,
            ):
                _refuse_taken(session, name, place)

    def check_free(self, name: str, *, source: str, table: str | None = None) -> None:
        """Raise ``LedgerExists`` if a dataset of this name or source is registered."""
        with self._store.reading() as session:
            _refuse_taken(session, name, (source, table or ""))

    def datasets(self) -> list[Registered]:
        """Return all datasets, in the order of their names."""
        with self._store.reading() as session:
            found = session.rows(f"SELECT {_DATASET} FROM served_datasets ORDER BY name")
        return [_read_row(row) for row in found]

    def dataset(self, name: str) -> Registered:
        """Return one dataset, or ``LedgerMissing``."""
        with self._store.reading() as session:
            found = session.rows(f"SELECT {_DATASET} FROM served_datasets WHERE name = ?", (name,))
        if not found:
            raise LedgerMissing(f"there is no dataset {name!r} here")
        return _read_row(found[0])

    # --- analysts ----------------------------------------------------------------------

    def add_analyst(self, name: str) -> None:
        """Enter an analyst; what they may spend is said by budgets of the ledger."""
        check_name("analyst", name)
        with self._store.writing() as session:
            values = (name, _text(self._clock()))
            if not session.run(
                "INSERT INTO analysts (name, created) VALUES (?, ?) ON CONFLICT DO NOTHING", values
            ):
                raise LedgerExists(f"there is an analyst {name!r} already; nothing was changed")

    def analysts(self) -> list[str]:
        """Return the names of all analysts."""
        with self._store.reading() as session:
            return [str(row[0]) for row in session.rows("SELECT name FROM analysts ORDER BY name")]

    # --- tokens ------------------------------------------------------------------------

    def issue(
        self,
        role: str,
        *,
        analyst: str | None = None,
        project: str | None = None,
        datasets: Sequence[str] = (),
        days: int = 90,
        note: str = "",
    ) -> tuple[str, Token]:
        """Make a token. Its text is returned once and cannot be had again.

        A token of an analyst names the analyst, at least one dataset, and perhaps a project
        whose budget its charges count against as well. A token of an owner opens everything.
        """
        _validate.one_of("role", role, (OWNER, ANALYST))
        _validate.integer("days", days, at_least=1, at_most=LONGEST_DAYS)
        if len(note) > 200 or (note and not note.isprintable()):
            raise InvalidValue("note", note[:80], "at most 200 printable characters")
        scope = _scope(role, analyst=analyst, project=project, datasets=datasets)
        made, now = new_secret(), self._clock()
        token = Token(
            id=made.id,
            role=role,
            analyst=analyst,
            project=project,
            datasets=scope,
            note=note,
            created=_text(now),
            expires=_text(now + timedelta(days=days)),
            revoked=None,
        )
        with self._store.writing() as session:
            if analyst is not None and not session.rows(
                "SELECT 1 FROM analysts WHERE name = ?", (analyst,)
            ):
                raise LedgerMissing(f"there is no analyst {analyst!r}; nothing was changed")
            session.run(
                f"INSERT INTO tokens (digest, {_TOKEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    digest_of(made.secret),
                    token.id,
                    role,
                    analyst,
                    project,
                    json.dumps(scope),
                    note,
                    token.created,
                    token.expires,
                    None,
                ),
            )
        return made.as_text(), token

    def revoke(self, token: str) -> None:
        """End a token at once; to revoke one twice changes nothing."""
        with self._store.writing() as session:
            if not session.rows("SELECT 1 FROM tokens WHERE id = ?", (token,)):
                raise LedgerMissing(f"there is no token {token!r}")
            session.run(
                "UPDATE tokens SET revoked = ? WHERE id = ? AND revoked IS NULL",
                (_text(self._clock()), token),
            )

    def tokens(self) -> list[Token]:
        """Return all tokens, the newest first."""
        with self._store.reading() as session:
            found = session.rows(f"SELECT {_TOKEN} FROM tokens ORDER BY created DESC, id")
        return [_token(row) for row in found]

    def authenticate(self, text: str) -> Holder | None:
        """Say who holds this token; None if it is unknown, wrong, expired or revoked."""
        given = parse(text)
        if given is None:
            return None
        # A token that is not on the disk yet has not left the one who makes it.
        with self._store.reading(durable=False) as session:
            found = session.rows(f"SELECT digest, {_TOKEN} FROM tokens WHERE id = ?", (given.id,))
        digest = str(found[0][0]) if found else None
        if not matches(given.secret, digest):
            return None
        token = _token(found[0][1:])
        if token.revoked is not None or self._clock() >= datetime.fromisoformat(token.expires):
            return None
        return Holder(
            token=token.id,
            role=token.role,
            analyst=token.analyst,
            project=token.project,
            datasets=token.datasets,
            expires=token.expires,
        )


_DATASET = "name, schema, source, part, engine, created"
_TOKEN = "id, role, analyst, project, datasets, note, created, expires, revoked"


def _read_row(row: Sequence[Any]) -> Registered:
    name, schema, source, table, engine, created = row
    return Registered(name, schema, source, table or None, engine, created)


def _refuse_taken(session: Session, name: str, place: tuple[str, str]) -> None:
    if session.rows("SELECT 1 FROM served_datasets WHERE name = ?", (name,)):
        raise LedgerExists(f"there is a dataset {name!r} already; nothing was changed")
    statement = "SELECT name FROM served_datasets WHERE source = ? AND part = ?"
    for (known,) in session.rows(statement, place):
        raise LedgerExists(
            f"this source is served as {known!r} already: a second name would be a second budget "
            "for the same people; nothing was changed"
        )


def dataset_name(argument: str, name: object) -> str:
    """Return a name that can stand in an address, or raise ``InvalidValue``."""
    if not isinstance(name, str) or _SERVED_NAME.fullmatch(name) is None:
        expected = "a name of at most 64 letters, digits, dots, dashes and underscores"
        raise InvalidValue(argument, name, expected)
    return name


def _token(row: Sequence[Any]) -> Token:
    id_, role, analyst, project, datasets, *rest = row
    return Token(id_, role, analyst, project, tuple(json.loads(datasets)), *rest)


def _scope(
    role: str, *, analyst: str | None, project: str | None, datasets: Sequence[str]
) -> tuple[str, ...]:
    if role == OWNER:
        for argument, value in (("analyst", analyst), ("project", project)):
            if value is not None:
                raise InvalidValue(argument, value, "nothing for an owner")
        if datasets:
            raise InvalidValue("datasets", list(datasets), "none for an owner, who sees them all")
        return ()
    check_name("analyst", analyst)
    if project is not None:
        check_name("project", project)
    if isinstance(datasets, str) or not datasets:
        raise InvalidValue("datasets", datasets, "at least one dataset that the token opens")
    return tuple(sorted({check_name("datasets", name) for name in datasets}))


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
