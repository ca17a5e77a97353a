"""``discreet attack membership``: who was in the training data of a model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli.attack_output import (
    Exposed,
    ModelOutput,
    PageFile,
    Seed,
    page_place,
    print_marked,
)
from discreet.cli.options import Json, count, real
from discreet.cli.tables import at_most, print_json, print_lines, print_table
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.attacks import MembershipResult, Observation, ShadowScores
    from discreet.cli.attack_records import Records
    from discreet.cli.attack_subjects import Subject

__all__ = ["membership"]

_SHADOWED = ("lira", "lira-offline", "rmia", "shokri")
_PUBLIC_MEMBERS = "the members are canaries or public data, say --public-members"
ATTACKS = ("yeom", "quantile", "label-only", *_SHADOWED)


def membership(
    *,
    members: Annotated[
        str, typer.Option(metavar="FILE", help="Records that the model was trained on.")
    ],
    nonmembers: Annotated[
        str,
        typer.Option(metavar="FILE", help="Records of the same kind that it was not trained on."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="A directory that discreet train wrote, or module:name in Python, which is "
            "imported and run. Without it the files hold the answers of the model.",
        ),
    ] = None,
    model_output: ModelOutput = None,
    label: Annotated[
        str, typer.Option(metavar="NAME", help="The column of the true class in CSV files.")
    ] = "label",
    attack: Annotated[
        list[str] | None,
        typer.Option(
            metavar="|".join(ATTACKS),
            help="May be given several times.  [default: all that the inputs allow, but label-only "
            "only for models without probabilities]",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Further records that were not used, by which the attacker sets a threshold.",
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="function(records, labels) returns a model like the target: for shadow models. "
            "Not needed for a directory, which says how its model was trained.",
        ),
    ] = None,
    shadows: Annotated[
        str, typer.Option(metavar="INTEGER", help="How many shadow models to train.")
    ] = "64",
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY", help="Keep the answers of shadow models here, and go on from them."
        ),
    ] = None,
    jobs: Annotated[
        str, typer.Option(metavar="INTEGER", help="Processes that train shadow models.")
    ] = "1",
    overlap: Annotated[
        str,
        typer.Option(
            metavar="refuse|drop|allow",
            help="What to do about records that are in both files.",
        ),
    ] = "refuse",
    confidence: Annotated[str, typer.Option(metavar="NUMBER", help="Of all intervals.")] = "0.95",
    exposed: Exposed = "0",
    public_members: Annotated[
        bool,
        typer.Option(
            "--public-members",
            help="The members are canaries or public data. Without it the output is marked "
            "INTERNAL, because it is computed from private records.",
        ),
    ] = False,
    seed: Seed = None,
    output: PageFile = None,
    as_json: Json = False,
) -> None:
    r"""Measure how well attackers tell members of the training data from others.

    Files are CSV or Parquet tables, or NPZ with the arrays records and labels. Answers of a
    model are one column of probability for each class and the label, or NPZ with the arrays
    probabilities and labels. Tables are joined by the names of their columns, in any order.
    Nothing is ever unpickled.

    How well an attack on real members works is computed from private records, outside of any
    mechanism: what this command prints and writes is INTERNAL, unsafe to publish.

    \b
    Examples:
      discreet attack membership --members seen.csv --nonmembers unseen.csv --label outcome
      discreet attack membership --model model --members train.csv --nonmembers test.csv \
        --output membership.html
      discreet attack membership --model study:target --members in.npz --nonmembers out.npz \
        --train study:train --shadows 64 --pool shadows --jobs 2 --exposed 10 -o internal.html
    """
    from discreet.cli.attack_subjects import subject

    level = real("confidence", confidence, above=0, below=1)
    listed = count("exposed", exposed, at_least=0)
    start = None if seed is None else count("seed", seed, at_least=0)
    many = count("shadows", shadows, at_least=2)
    workers = count("jobs", jobs, at_least=1)
    for name in attack or ():
        if name not in ATTACKS:
            raise InvalidValue("attack", name, "one of " + ", ".join(ATTACKS))
    with page_place(output) as place:
        asked = subject(model, label=label, output=model_output)
        chosen = _chosen(attack or [], asked, public, train)
        maker = _maker(asked, train)
        given = {"members": members, "nonmembers": nonmembers}
        sets = asked.read_all(given if public is None else {**given, "public": public})
        order = _Order(asked, sets, chosen, maker, many, pool, workers, overlap, level, start)
        results = order.run()
        if place.wanted:
            files = {"model": asked.title, "members in": members, "non-members in": nonmembers}
            _write_page(place.write, results, asked, files, listed, public_members, level)
    internal = listed > 0 or not public_members
    if as_json:
        shown = [result.to_json(confidence=level, exposed=listed) for result in results]
        print_json(
            {
                "model": asked.title,
                "internal": internal,
                "exposes_records": listed > 0,
                "results": shown,
            }
        )
        return
    _print(results, asked, level, listed)
    print_marked(output, internal=internal, unless=None if listed else _PUBLIC_MEMBERS)


def _maker(asked: Subject, train: str | None) -> Callable[..., Any] | None:
    from discreet.cli.attack_subjects import SameLearner, imported

    if train is not None:
        found = imported("train", train)
        if not callable(found):
            raise InvalidValue("train", train, "a function of records and labels")
        made: Callable[..., Any] = found
        return made
    return None if asked.learner is None else SameLearner(asked.learner)


def _chosen(
    names: list[str], asked: Subject, public: str | None, train: str | None
) -> tuple[str, ...]:
    if train is not None and asked.answers_only:
        expected = "nothing without --model: shadow models need records, not the answers of a model"
        raise InvalidValue("train", train, expected)
    if not names:
        if asked.target.label_only:
            return ("label-only",)
        free = ["yeom", *(["quantile"] if public and not asked.answers_only else [])]
        return (*free, *(("lira", "rmia", "shokri") if train else ()))
    for name in names:
        if name in _SHADOWED and train is None and asked.learner is None:
            raise InvalidValue("train", "none", f"module:function, which {name} needs")
        if name == "quantile" and public is None:
            raise InvalidValue("public", "none", "a file, which quantile needs")
        if name in {"quantile", "label-only", *_SHADOWED} and asked.answers_only:
            raise InvalidValue("model", "none", f"a model, which {name} needs beside its answers")
        if name != "label-only" and asked.target.label_only:
            expected = "label-only, because the model gives no probabilities"
            raise InvalidValue("attack", name, expected)
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class _Order:
    """What was asked for, checked and read."""

    subject: Subject
    sets: dict[str, Records]
    attacks: tuple[str, ...]
    train: Callable[..., Any] | None
    shadows: int
    pool: str | None
    jobs: int
    overlap: str
    confidence: float
    seed: int | None

    def run(self) -> list[MembershipResult]:
        """Ask the target once, train shadow models once, and run every attack."""
        from discreet import attacks
        from discreet.attacks import mark_strongest

        if self.attacks == ("label-only",):
            return [self._label_only()]
        observed = attacks.observe_split(
            self.subject.target,
            members=self.sets["members"].pair,
            nonmembers=self.sets["nonmembers"].pair,
            # Equal answers do not make equal records.
            overlap="allow" if self.subject.answers_only else self.overlap,
        )
        public = self._public()
        if self.subject.answers_only:
            # Equal answers do not make equal records, here either: discrete models repeat theirs.
            observed, public = _all_different(observed, public)
        scores = self._scores(observed) if set(self.attacks) & set(_SHADOWED) else None
        tried = {"yeom", "lira", "lira-offline", "rmia"} & set(self.attacks)
        results = []
        for name in self.attacks:
            if name == "yeom":
                results.append(attacks.yeom(observed, public=public))
            elif name == "quantile":
                assert public is not None
                results.append(attacks.quantile_regression(observed, public, seed=self.seed))
            elif name == "label-only":
                results.append(self._label_only())
            else:
                assert scores is not None
                results.append(_shadowed(name, observed, scores, self.seed))
        return (
            results if scores is None or not tried else [*mark_strongest(results, observed, scores)]
        )

    def _public(self) -> Observation | None:
        from discreet import attacks

        if "public" not in self.sets:
            return None
        records, labels = self.sets["public"].pair
        unused = [False] * len(labels)
        return attacks.observe(self.subject.target, records, labels, members=unused)

    def _scores(self, observed: Observation) -> ShadowScores:
        from discreet import attacks

        assert self.train is not None
        output = self.subject.output
        maker = _ReadAs(attacks.on_records(self.train, observed.records, observed.labels), output)
        told = "" if output is None else f" {output}"
        pool = attacks.ShadowPool(
            observed.records,
            observed.labels,
            maker,
            models=self.shadows,
            classes=observed.classes,
            cache=self.pool,
            cache_key=_cache_key(self.train) + told,
            seed=self.seed,
            n_jobs=self.jobs,
            progress=sys.stderr.isatty(),
        )
        for name in self.attacks:  # too few models are refused before any is trained
            if name.startswith("lira"):
                attacks.check_lira_models(pool.inclusion, mode=name.partition("-")[2] or "online")
            elif name == "rmia":
                attacks.check_rmia_models(pool.inclusion)
        return pool.run()

    def _label_only(self) -> MembershipResult:
        import numpy as np

        from discreet import attacks

        inside, outside = self.sets["members"], self.sets["nonmembers"]
        public = self.sets.get("public")
        return attacks.label_only(
            self.subject.target,
            np.concatenate([inside.values, outside.values]),
            np.concatenate([inside.labels, outside.labels]),
            members=np.arange(len(inside) + len(outside)) < len(inside),
            public=None if public is None else public.pair,
            overlap=self.overlap,
            seed=self.seed,
        )


def _all_different(
    observed: Observation, public: Observation | None
) -> tuple[Observation, Observation | None]:
    """Take every answer for that of a record of its own, as the files say it is."""
    if public is not None:
        public = public.as_different_records(first=len(observed))
    return observed.as_different_records(), public


def _cache_key(train: Callable[..., Any]) -> str:
    """Name a training function; a pool trains one kept model again, so changes are noticed."""
    given = getattr(train, "cache_key", None)
    if isinstance(given, str) and given:
        return given
    return f"{train.__module__}.{getattr(train, '__qualname__', type(train).__qualname__)}"


class _ReadAs:
    """Trains models whose output is of the kind that ``--model-output`` says."""

    def __init__(self, train: Callable[..., Any], output: str | None) -> None:
        self._train = train
        self._output = output

    def __call__(self, indices: Any, seed: int) -> Any:
        from discreet.cli.attack_subjects import read_as

        return read_as(self._train(indices, seed), self._output)


def _shadowed(
    name: str, observed: Observation, scores: ShadowScores, seed: int | None
) -> MembershipResult:
    from discreet import attacks

    if name == "rmia":
        return attacks.rmia(observed, scores)
    if name == "shokri":
        return attacks.shokri(observed, scores, seed=seed)
    return attacks.lira(observed, scores, mode="online" if name == "lira" else "offline")


def _write_page(
    write: Callable[[Any], None],
    results: list[MembershipResult],
    asked: Subject,
    files: dict[str, str],
    exposed: int,
    public_members: bool,
    confidence: float,
) -> None:
    from discreet.report import membership_page

    write(
        membership_page(
            results,
            about={**files, **asked.about},
            class_names=asked.class_names,
            exposed=exposed,
            public_members=public_members,
            loss=asked.loss,
            confidence=confidence,
        )
    )


def _print(
    results: list[MembershipResult], asked: Subject, confidence: float, exposed: int
) -> None:
    from discreet.attacks import REPORTED_FPR
    from discreet.report import strongest_attack

    rows = []
    for result in results:
        low, high = result.auc_interval(confidence=confidence)
        rows.append([result.attack, "AUC", *_figure(result.auc, low, high)])
        there = {p.asked_fpr: p.tpr for p in result.operating_points(confidence=confidence)}
        for rate in REPORTED_FPR:
            tpr = there.get(rate)
            cells = ("-",) * 3 if tpr is None else _figure(tpr.share, tpr.low, tpr.high)
            rows.append(["", f"TPR at FPR {rate:g}", *cells])
        if result.decisions is not None:
            gain = result.advantage(confidence=confidence)
            rows.append(["", "advantage", *_figure(gain.value, gain.low, gain.high, sign="+")])
    headings = ("attack", "figure", "value", "low", "high")
    print_table(headings, rows, numeric=(False, False, True, True, True))
    curve = results[0].roc
    lines = [
        "",
        (
            f"{curve.members} members, {curve.nonmembers} non-members of {asked.title}; intervals "
            f"at {confidence:g}. Chance: AUC 0.5, TPR = FPR, advantage 0."
        ),
    ]
    if curve.nonmembers < 1 / min(REPORTED_FPR):
        lines.append(f"-: {curve.nonmembers} non-members cannot support so small a rate.")
    lines += [
        f"Advantage of {result.attack}: threshold by {result.threshold_from}."
        for result in results
        if result.decisions is not None and result.threshold_from is not None
    ]
    if exposed:
        best = strongest_attack(results)
        lines.append(f"INTERNAL: the most exposed members, by {best.attack}")
        lines += [
            f"  record {one.record}, class {one.label}, score {one.score:.4g}, "
            f"false-positive rate at most {at_most(one.fpr.high, digits=3)}"
            for one in best.most_exposed(exposed, confidence=confidence)
        ]
    print_lines(lines)


def _figure(value: float, low: float, high: float, *, sign: str = "") -> tuple[str, str, str]:
    """Return a figure and its interval in four decimals; the interval is never narrowed."""
    low, high = math.floor(1e4 * low) / 1e4, math.ceil(1e4 * high) / 1e4
    return f"{value:{sign}.4f}", f"{low:{sign}.4f}", f"{high:{sign}.4f}"
