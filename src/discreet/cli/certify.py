"""``discreet certify``: the certificate of a model that is there already."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.options import Json, count
from discreet.cli.tables import at_most, print_json, print_lines
from discreet.errors import FileUnusable, InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import MembershipResult, Observation
    from discreet.cli.attack_subjects import Subject
    from discreet.report import InternalFacts

__all__ = ["certify"]

_FILE = "FILE"
_CERTIFIED = "certified model"


def certify(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A directory with a model and its certificate.json."),
    ],
    *,
    out: Annotated[
        str | None,
        typer.Option(metavar="DIRECTORY", help="Where to write.  [default: MODEL-certificate]"),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is certified.  [default: its name]")
    ] = None,
    members: Annotated[
        str | None, typer.Option(metavar=_FILE, help="Records that the model learned from.")
    ] = None,
    nonmembers: Annotated[
        str | None, typer.Option(metavar=_FILE, help="Records like them that it did not see.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="The model in Python, where the directory alone cannot answer. Runs that module.",
        ),
    ] = None,
    label: Annotated[
        str, typer.Option(metavar="NAME", help="The column of the true class, with --target.")
    ] = "label",
    shadows: Annotated[
        str,
        typer.Option(
            metavar="INTEGER",
            help="Shadow models to train, in pairs, for the strongest of LiRA, RMIA and Yeom.",
        ),
    ] = "0",
    audit: Annotated[
        list[str] | None,
        typer.Option(metavar=_FILE, help="The outcome of an audit in JSON; repeatable."),
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Where the data come from.")
    ] = None,
    lawful_basis: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why they may be used.")
    ] = None,
    kept_until: Annotated[
        str | None, typer.Option(metavar="TEXT", help="How long they are kept.")
    ] = None,
    access: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Who can reach the raw data.")
    ] = None,
    side_channels: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What was done about timing, logs, copies.")
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="LEDGER", help="The ledger that was charged; it records the publication."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    r"""Certify a model of discreet train, or of your own code with a certificate.

    The public part is made from the certificate that the learner wrote, its entry in the ledger
    and audits. With --ledger that ledger records what is published, so that a certificate which
    is changed later is found out. With --members and --nonmembers the model is attacked as well;
    what that finds is internal and goes to a directory of its own.

    \b
    Examples:
      discreet certify model --ledger study.ledger
      discreet certify model --members train.csv --nonmembers others.csv --shadows 16 \
        --source "patients of our clinics, 2019 to 2024"
    """
    from discreet._files import new_directory
    from discreet.certificate import Collection
    from discreet.ledger import Ledger
    from discreet.report import (
        file_hashes,
        model_certificate,
        model_files,
        read_audit,
        write_annex,
        write_certificate,
    )

    if (members is None) != (nonmembers is None):
        missing, given = ("nonmembers", members) if nonmembers is None else ("members", nonmembers)
        raise InvalidValue(missing, "none", f"a file, beside {given}")
    number = count("shadows", shadows, at_least=0)
    place = Path(model)
    if not place.is_dir():
        raise FileUnusable("model", model, "a directory")
    found = model_certificate(place)
    if ledger is not None and found.receipt is None:
        raise InvalidValue("ledger", ledger, "none: no ledger was charged for this model")
    hashes = file_hashes(place, model_files(place))
    published = found.publish(
        title=place.resolve().name if title is None else title,
        files={f"model/{name}": digest for name, digest in hashes.items()},
        audits=[read_audit(path) for path in audit or ()],
        collection=Collection(
            source=source,
            lawful_basis=lawful_basis,
            kept_until=kept_until,
            access=access,
            side_channels=side_channels,
        ),
    )
    beside = place if place.name not in {"", ".."} else place.resolve()
    goal = f"{beside}-certificate" if out is None else out
    with new_directory(goal) as draft:
        internal = None
        if members is not None and nonmembers is not None:
            internal = _internal(
                model if target is None else target, label, members, nonmembers, number
            )
        (draft / "public" / "model").mkdir(parents=True)
        for name in model_files(place):
            shutil.copyfile(place / name, draft / "public" / "model" / name)
        certificate = published.to_json()
        if internal is not None:
            write_annex(draft, internal, certificate)
        with nullcontext() if ledger is None else Ledger.open(ledger) as book:
            write_certificate(draft, published, ledger=book)
    _report(goal, certificate, internal, as_json=as_json)


def _internal(model: str, label: str, members: str, nonmembers: str, shadows: int) -> InternalFacts:
    import numpy as np

    from discreet import attacks
    from discreet._confidence import proportion
    from discreet.cli.attack_subjects import subject
    from discreet.report import Attacked, InternalFacts, Utility

    asked = subject(model, label=label)
    seen = attacks.observe_split(
        asked.target,
        members=asked.read("members", members).pair,
        nonmembers=asked.read("nonmembers", nonmembers).pair,
        # In a table many people share a row; the same row on both sides is no mistake.
        overlap="allow",
    )
    right = np.argmax(seen.log_probabilities, axis=1) == seen.labels
    utility = tuple(
        Utility(
            model=_CERTIFIED,
            records=name,
            accuracy=proportion(int(right[part].sum()), int(part.sum())),
        )
        for name, part in (("training records", seen.members), ("records outside", ~seen.members))
    )
    found = Attacked(_CERTIFIED, True, _attacks(asked, seen, shadows))
    return InternalFacts(attacked=(found,), utility=utility, class_names=asked.class_names)


def _attacks(asked: Subject, seen: Observation, shadows: int) -> tuple[MembershipResult, ...]:
    from discreet import attacks
    from discreet.attacks import strongest_of_three
    from discreet.cli.attack_subjects import SameLearner

    if shadows:
        if asked.learner is None:
            expected = "0: only a model of discreet train can be trained again from its directory"
            raise InvalidValue("shadows", shadows, expected)
        maker = attacks.on_records(SameLearner(asked.learner), seen.records, seen.labels)
        pool = attacks.ShadowPool(
            seen.records,
            seen.labels,
            maker,
            models=shadows + shadows % 2,
            pairs=True,
            classes=seen.classes,
        )
        return strongest_of_three(seen, pool)
    return (attacks.yeom(seen),)


def _report(
    goal: str, certificate: dict[str, Any], internal: InternalFacts | None, *, as_json: bool
) -> None:
    promise = certificate["guarantee"]
    files = sorted(path.relative_to(goal).as_posix() for path in Path(goal).rglob("*.*"))
    if as_json:
        print_json(
            {
                "out": goal,
                "epsilon": promise["epsilon"],
                "delta": promise["delta"],
                "verdict": certificate["verdict"]["state"],
                "warnings": certificate["warnings"],
                "internal": internal is not None,
                "files": files,
            }
        )
        return
    epsilon = "none" if promise["epsilon"] is None else at_most(promise["epsilon"])
    delta = at_most(promise["delta"])
    worst = [f"{one['severity']}: {one['text']}" for one in certificate["warnings"]]
    print_lines(
        [
            f"epsilon at most {epsilon} at delta {delta} for one {promise['unit']}",
            f"{certificate['verdict']['state']}: {certificate['verdict']['sentence']}",
            *worst,
            "",
            f"may be published   {goal}/public/certificate.html",
        ]
    )
    if internal is not None:
        print_lines([f"must not be        {goal}/internal/annex.html"])
