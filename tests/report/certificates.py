"""Made-up facts for certificates."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

from discreet._confidence import proportion
from discreet.attacks import MembershipResult
from discreet.audit import Inclusion, TrainingAudit, audit_one_run, require_sound_audits
from discreet.certificate import Certificate, Collection, PaidAnswer
from discreet.ledger import Ledger
from discreet.mechanisms import laplace_count
from discreet.privacy import GDP, DiscreteLaplace, Loss
from discreet.randomness import source
from discreet.report import Attacked, InternalFacts, Utility

AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
LOSS = GDP(mu=0.8)
DELTA = 1e-5
_LATER = ("title", "files", "audits", "answers", "collection")
STATED = Collection(
    source="made up",
    lawful_basis="none is needed",
    kept_until="the end of the test",
    access="everybody",
    side_channels="none",
)


def audit(
    right: int = 40, *, loss: Loss = LOSS, guesses: int = 120, delta: float = DELTA
) -> TrainingAudit:
    """An audit of 400 canaries in which so many of the guesses are right."""
    coins = Inclusion(400, guesses=(guesses, 0), source=source(insecure_seed=4))
    inside, outside = np.flatnonzero(coins.included), np.flatnonzero(~coins.included)
    scores = np.zeros(400)
    scores[inside[:right]] = 2.0
    scores[outside[: guesses - right]] = 1.0
    found = audit_one_run(coins, scores, loss=loss, delta=delta)
    assert found.evidence["correct"] == right
    return found


def public_certificate(facts: dict[str, Any], *, at: dt.datetime = AT) -> dict[str, Any]:
    """The document of such facts, published."""
    document = published(facts, at=at).to_json()
    require_sound_audits(document)
    return document


def published(facts: dict[str, Any], *, at: dt.datetime = AT) -> Certificate:
    later = {name: facts[name] for name in _LATER if name in facts}
    return fitted(facts).publish(**later, at=at)


def fitted(facts: dict[str, Any]) -> Certificate:
    """What a learner would write of such facts."""
    now = {name: value for name, value in facts.items() if name not in _LATER}
    return Certificate.of(now.pop("loss"), **now)


def paid_facts(place: Path, **changes: Any) -> dict[str, Any]:
    """Facts of a model and an answer that were charged to a ledger in ``place``."""
    with Ledger.create(place / "study.ledger") as ledger:
        ledger.create_dataset("people", epsilon=9, delta="1e-4", unit="person")
        ledger.create_dataset("others", epsilon=1, unit="person")
        with ledger.charge("people", LOSS, purpose="a model", delta=DELTA) as charge:
            receipt = charge.receipt()
            fitted(facts(**changes)).paid_by(charge)
        with ledger.charge("others", DiscreteLaplace(scale=2.0)) as charge:
            release = laplace_count(80, epsilon="0.5")
            answer = PaidAnswer.of(
                release, question="how many", divided_by=100, receipt=charge.receipt()
            )
    settings: dict[str, Any] = {
        "receipt": receipt,
        "answers": (answer,),
        "audits": (audit(80),),
        "collection": STATED,
        **changes,
    }
    return facts(**settings)


def facts(**changes: Any) -> dict[str, Any]:
    """Facts of a model without a ledger and without an audit."""
    settings: dict[str, Any] = {
        "title": "a made-up model",
        "learner": "example",
        "loss": LOSS,
        "delta": DELTA,
        "unit": "person",
        "plan": {"steps": 3, "clip_norm": 1.0},
        "randomness": {"randomness": "operating system"},
        "assumptions": ("one unit owns one example",),
        **changes,
    }
    return settings


def attacked(name: str, *, shift: float, private: bool, count: int = 300) -> Attacked:
    """An attack whose scores of members lie higher by ``shift``."""
    rng = np.random.default_rng(4)
    members = np.arange(2 * count) < count
    scores = rng.normal(0, 1, 2 * count) + shift * members
    labels, records = np.arange(2 * count) % 3, np.arange(2 * count)
    result = MembershipResult("lira online", scores, members, labels, records, scores > 1, 1.0)
    return Attacked(name, private, (result,))


def internal_facts(shift: float = 0.1) -> InternalFacts:
    """Attacks on a private model and its twin."""
    return InternalFacts(
        attacked=(
            attacked("private model", shift=shift, private=True),
            attacked("plain twin", shift=2.0, private=False),
        ),
        utility=(
            Utility(model="private model", records="outside", accuracy=proportion(88, 100)),
            Utility(model="plain twin", records="outside", accuracy=proportion(93, 100)),
        ),
        class_names=("cat", "dog", "cow"),
    )
