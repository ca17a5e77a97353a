"""The registry: tokens that are valid, and all the ways in which they are not."""

import secrets
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from discreet.curator.service import Registry, _registry
from discreet.errors import InvalidValue, LedgerExists, LedgerMissing
from discreet.ledger import Ledger


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def registry(place: str, clock: Clock) -> Iterator[Registry]:
    with Ledger.create(place) as ledger:
        found = Registry(ledger, clock=clock)
        found.add_analyst("ann")
        yield found


def issue(registry: Registry, **changes: Any) -> tuple[str, str]:
    wanted = {"analyst": "ann", "datasets": ["census"], "days": 30, **changes}
    text, token = registry.issue("analyst", **wanted)
    return text, token.id


def test_a_token_opens_what_it_says(registry: Registry) -> None:
    text, _ = issue(registry, project="wages", datasets=["census", "trips", "census"])
    holder = registry.authenticate(text)
    assert holder is not None
    assert (holder.role, holder.analyst, holder.project) == ("analyst", "ann", "wages")
    assert holder.datasets == ("census", "trips")
    assert holder.may_see("census")
    assert not holder.may_see("wealth")
    owner = registry.authenticate(registry.issue("owner")[0])
    assert owner is not None
    assert owner.owns
    assert owner.may_see("wealth")


def test_a_token_has_256_random_bits_and_is_stored_as_a_hash(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "study.ledger")
    registry = Registry(ledger)
    registry.add_analyst("ann")
    made = [registry.issue("analyst", analyst="ann", datasets=["census"])[0] for _ in range(8)]
    secret = _registry.parse(made[0])
    assert secret is not None
    assert len(bytes.fromhex(secret.secret)) == 32
    assert len({text[-64:] for text in made}) == 8
    ledger.close()
    files = list(tmp_path.glob("study.ledger/*"))
    stored = b"".join(path.read_bytes() for path in files)
    assert _registry.digest_of(secret.secret).encode() in stored
    assert all(text[-64:].encode() not in stored for text in made)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_expired_revoked_and_forged_tokens_open_nothing(registry: Registry, clock: Clock) -> None:
    text, _ = issue(registry, days=1)
    clock.now += timedelta(days=1, microseconds=-1)
    assert registry.authenticate(text) is not None
    clock.now += timedelta(microseconds=1)
    assert registry.authenticate(text) is None
    other, other_id = issue(registry)
    assert registry.authenticate(other) is not None
    registry.revoke(other_id)
    registry.revoke(other_id)
    assert registry.authenticate(other) is None
    good, _ = issue(registry)
    head, secret = good.rsplit("_", 1)
    flipped = secret[:-1] + ("0" if secret[-1] != "0" else "1")
    forged = [
        f"{head}_{flipped}",
        f"{head}_{secrets.token_hex(32)}",
        f"dsc_{secrets.token_hex(8)}_{secret}",
        f"{head}_{_registry.digest_of(secret)}",
        secret,
        "",
        "' OR 1=1 --",
        f"{head}_{secret} ",
        f"{head}_{secret}\n",
        good.upper(),
    ]
    assert [registry.authenticate(text) for text in forged] == [None] * len(forged)
    assert registry.authenticate(good) is not None


def test_comparison_is_constant_time_and_made_without_a_row(monkeypatch: Any) -> None:
    compared: list[tuple[str, str]] = []

    def watched(left: str, right: str) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(_registry.hmac, "compare_digest", watched)
    secret = secrets.token_hex(32)
    assert _registry.matches(secret, _registry.digest_of(secret))
    assert not _registry.matches(secret, None)
    assert [left for left, _ in compared] == [_registry.digest_of(secret)] * 2


@pytest.mark.parametrize(
    ("role", "fields", "argument"),
    [
        ("admin", {}, "role"),
        ("owner", {"analyst": "ann"}, "analyst"),
        ("owner", {"datasets": ["census"]}, "datasets"),
        ("analyst", {"analyst": None, "datasets": ["census"]}, "analyst"),
        ("analyst", {"analyst": "ann"}, "datasets"),
        ("analyst", {"analyst": "ann", "datasets": "census"}, "datasets"),
        ("analyst", {"analyst": "ann", "datasets": ["census"], "days": 0}, "days"),
        ("analyst", {"analyst": "ann", "datasets": ["census"], "note": "\x00"}, "note"),
    ],
)
def test_tokens_that_make_no_sense_are_refused(
    registry: Registry, role: str, fields: dict[str, Any], argument: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        registry.issue(role, **fields)
    assert caught.value.argument == argument
    assert registry.tokens() == []


def test_analysts_and_datasets_are_entered_once(registry: Registry) -> None:
    with pytest.raises(LedgerExists):
        registry.add_analyst("ann")
    with pytest.raises(LedgerMissing):
        issue(registry, analyst="bob")
    registry.add_dataset("census", schema="", source="people.csv", engine="duckdb")
    with pytest.raises(LedgerExists):
        registry.add_dataset("census", schema="", source="other.csv", engine="duckdb")
    with pytest.raises(LedgerExists, match="second budget for the same people"):
        registry.add_dataset("again", schema="", source="people.csv", engine="duckdb")
    registry.add_dataset("part", schema="", source="people.csv", table="b", engine="duckdb")
    assert [one.name for one in registry.datasets()] == ["census", "part"]
    assert registry.dataset("part").table == "b"
    with pytest.raises(LedgerMissing):
        registry.dataset("wealth")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 65, "é", "a\n", "%2e", "a;b"])
def test_names_of_datasets_can_stand_in_an_address(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidValue):
        registry.add_dataset(name, schema="", source="people.csv", engine="duckdb")


def test_texts_are_values_and_never_statements(registry: Registry) -> None:
    nasty = "x'); DROP TABLE tokens; --"
    registry.add_analyst(nasty)
    text, _ = issue(registry, analyst=nasty, note=nasty, datasets=[nasty])
    holder = registry.authenticate(text)
    assert holder is not None
    assert holder.analyst == nasty
    assert registry.tokens()[0].note == nasty


def test_many_threads_share_a_registry(registry: Registry) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            registry.add_analyst(f"analyst {number}")
            for _ in range(5):
                text, _ = issue(registry, analyst=f"analyst {number}")
                assert registry.authenticate(text) is not None
        except Exception as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(registry.analysts()) == 9
    assert len(registry.tokens()) == 40


def test_tokens_survive_the_process_and_a_restored_backup_ends_them(tmp_path: Path) -> None:
    """A backup does not know which tokens were revoked since it was made."""
    with Ledger.create(tmp_path / "study.ledger") as ledger:
        registry = Registry(ledger)
        registry.add_analyst("ann")
        text, token = issue(registry)
        other, _ = issue(registry)
        ledger.backup(tmp_path / "copy")
        registry.revoke(token)
    with Ledger.open(tmp_path / "study.ledger") as again:
        assert Registry(again).authenticate(text) is None
        assert Registry(again).authenticate(other) is not None
    with Ledger.restore(tmp_path / "copy") as restored:
        registry = Registry(restored)
        assert [registry.authenticate(one) for one in (text, other)] == [None, None]
        assert registry.analysts() == ["ann"]
        assert registry.authenticate(issue(registry)[0]) is not None
