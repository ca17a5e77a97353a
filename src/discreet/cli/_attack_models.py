"""``discreet attack``: what an adversary really gets, measured on one's own models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_most
from discreet._validate import one_of
from discreet.cli._app import (
    Group,
    print_json,
    print_lines,
    print_marked,
    print_table,
    shows_progress,
)
from discreet.cli._options import (
    Count,
    Real,
    combine_options,
    confidence_option,
    count,
    output_file,
    page_option,
    real,
    seed_option,
)
from discreet.errors import FileUnusable, InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks import AttackTarget, MembershipResult, Records

_MEMBERSHIP = "yeom|quantile|label-only|lira|lira-offline|rmia|shokri"
_PUBLIC_MEMBERS = "the members are canaries or public data, say --public-members"
PUBLIC_RECORDS = "the records are public or made up, say --public-records"
_ACCESS = {"outputs": "outputs", "sorted": "sorted weights", "sets": "weight sets"}


@click.group(cls=Group)
def attack() -> None:
    """What an adversary really gets, measured on your own models and tables."""


_OUTPUT = (
    "What a model in Python gives: say it of a torch module that ends in a softmax.  "
    "[default: logits of torch modules; others say it themselves]"
)
model_output_option = click.option(
    "--model-output", metavar="probabilities|logits|labels", help=_OUTPUT
)
label_option = click.option(
    "--label", metavar="NAME", default="label", help="The column of the true class in CSV files."
)
jobs_option = click.option(
    "--jobs", type=Count(at_least=1), default="1", help="Processes that train shadow models."
)
exposed_option = click.option(
    "--exposed",
    type=Count(at_least=0),
    default="0",
    help="List so many of the most exposed records. The output is internal then in any case: it "
    "points at single people.",
)
public_records_option = click.option(
    "--public-records",
    is_flag=True,
    help="The records are public or made up. Without it the output is marked INTERNAL, because it "
    "is computed from private records.",
)
overlap_option = click.option(
    "--overlap",
    metavar="refuse|drop|allow",
    default="refuse",
    help="What to do about records that are in both files.",
)
member_options = combine_options(
    click.option(
        "--members", metavar="FILE", required=True, help="Records that the model was trained on."
    ),
    click.option(
        "--nonmembers",
        metavar="FILE",
        required=True,
        help="Records of the same kind that it was not trained on.",
    ),
)
MODEL = (
    "A directory that discreet train wrote, or module:name in Python, which is imported and run."
)


@attack.command(short_help="Who was in the training data.")
@member_options
@click.option(
    "--model", metavar="MODEL", help=f"{MODEL} Without it the files hold the model's answers."
)
@model_output_option
@label_option
@click.option(
    "--text", metavar="NAME", help="The column of the texts that a model in Python is asked about."
)
@click.option(
    "--attack",
    "names",
    metavar=_MEMBERSHIP,
    multiple=True,
    help="May be given several times.  [default: all that the inputs allow, but label-only only "
    "for models without probabilities]",
)
@click.option(
    "--public",
    metavar="FILE",
    help="Further records that were not used, by which the attacker sets a threshold.",
)
@click.option(
    "--train",
    metavar="MODULE:FUNCTION",
    help="function(records, labels) returns a model like the target: for shadow models. Not needed "
    "for a directory, which says how its model was trained.",
)
@click.option(
    "--shadows", type=Count(at_least=2), default="64", help="How many shadow models to train."
)
@click.option(
    "--pool",
    metavar="DIRECTORY",
    help="Keep the answers of shadow models here, and go on from them. Change the text cache_key, "
    "an attribute of the function of --train, whenever you change that function.",
)
@jobs_option
@overlap_option
@confidence_option
@exposed_option
@click.option(
    "--public-members",
    is_flag=True,
    help="The members are canaries or public data. Without it the output is marked INTERNAL, "
    "because it is computed from private records.",
)
@seed_option
@page_option
def membership(
    members: str,
    nonmembers: str,
    model: str | None,
    model_output: str | None,
    label: str,
    text: str | None,
    names: tuple[str, ...],
    public: str | None,
    train: str | None,
    confidence: float,
    exposed: int,
    public_members: bool,
    output: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    r"""Measure how well attackers tell members of the training data from others.

    Files are CSV or Parquet tables, or NPZ with the arrays records and labels; the arrays data,
    indices, indptr and shape of a sparse matrix may stand for records. Answers of a model are
    one column of probability for each class and the label, or NPZ with the arrays
    probabilities and labels. Tables are joined by the names of their columns, in any order.
    Nothing is ever unpickled.

    How well an attack on real members works is computed from private records, outside of any
    mechanism: what this command prints and writes is INTERNAL, unsafe to publish.

    Examples:
      discreet attack membership --members seen.csv --nonmembers unseen.csv --label outcome
      discreet attack membership --model model --members train.csv --nonmembers test.csv \
        --output membership.html
      discreet attack membership --model study:target --members in.npz --nonmembers out.npz \
        --train study:train --shadows 64 --pool shadows --jobs 2 --exposed 10 -o internal.html
      discreet attack membership --model study:reviews --members seen.csv \
        --nonmembers unseen.csv --text review --label mood
    """
    from discreet.attacks import MEMBERSHIP, read_model

    for name in names:
        one_of("attack", name, tuple(MEMBERSHIP))
    with output_file(output, ".html") as draft:
        asked = read_model(model, label=label, output=model_output, text=text)
        results = _attack_members(asked, names, members, nonmembers, public, train, settings)
        if draft is not None:
            from discreet.report import membership_page

            files = {"model": asked.title, "members in": members, "non-members in": nonmembers}
            membership_page(
                results,
                about={**files, **asked.about},
                class_names=asked.class_names,
                exposed=exposed,
                public_members=public_members,
                loss=asked.loss,
                confidence=confidence,
            ).write(draft)
    internal = exposed > 0 or not public_members
    if as_json:
        print_json(
            {
                "model": asked.title,
                "internal": internal,
                "exposes_records": exposed > 0,
                "results": [
                    result.to_json(confidence=confidence, exposed=exposed) for result in results
                ],
            }
        )
        return
    _print_membership(results, asked, confidence, exposed)
    print_marked(output, internal=internal, unless=None if exposed else _PUBLIC_MEMBERS)


def _attack_members(
    asked: AttackTarget,
    names: tuple[str, ...],
    members: str,
    nonmembers: str,
    public: str | None,
    train: str | None,
    settings: dict[str, Any],
) -> list[MembershipResult]:
    from discreet.attacks import membership_attacks, number_membership

    chosen = () if asked.numbers else _choose_attacks(names, asked, public, train)
    maker = asked.retrain if train is None else _trainer(train)
    files = {"members": members, "nonmembers": nonmembers}
    if asked.numbers:
        pool = settings["pool"]
        for name, value in (("attack", names or None), ("public", public), ("pool", pool)):
            if value is not None:
                shown = ", ".join(value) if isinstance(value, tuple) else value
                raise InvalidValue(name, shown, "nothing for a model that predicts a number")
        given: dict[str, Any] = {n: records.pair for n, records in asked.read_all(files).items()}
        own = {name: settings[name] for name in ("overlap", "shadows", "seed")}
        return [number_membership(asked.model, **given, train=maker, **own)]
    sets = asked.read_all(files if public is None else {**files, "public": public})
    pairs: dict[str, Any] = {name: records.pair for name, records in sets.items()}
    return membership_attacks(
        asked.target,
        chosen,
        **pairs,
        answers_only=asked.answers_only,
        train=maker,
        output=asked.output,
        progress=shows_progress(),
        **settings,
    )


def _trainer(train: str) -> Callable[..., Any]:
    from discreet.attacks import import_name

    found = import_name("train", train)
    if not callable(found):
        raise InvalidValue("train", train, "a function of records and labels")
    made: Callable[..., Any] = found
    return made


def _choose_attacks(
    names: tuple[str, ...], asked: AttackTarget, public: str | None, train: str | None
) -> tuple[str, ...]:
    from discreet.attacks import needs_shadows

    if train is not None and asked.answers_only:
        expected = "nothing without --model: shadow models need records, not the answers of a model"
        raise InvalidValue("train", train, expected)
    if not names:
        if asked.target.label_only:
            return ("label-only",)
        free = ["yeom", *(["quantile"] if public and not asked.answers_only else [])]
        return (*free, *(("lira", "rmia", "shokri") if train else ()))
    for name in names:
        if needs_shadows(name) and train is None and asked.learner is None:
            raise InvalidValue("train", None, f"module:function, which {name} needs")
        if name == "quantile" and public is None:
            raise InvalidValue("public", None, "a file, which quantile needs")
        if name != "yeom" and asked.answers_only:
            raise InvalidValue("model", None, f"a model, which {name} needs beside its answers")
        if name != "label-only" and asked.target.label_only:
            expected = "label-only, because the model gives no probabilities"
            raise InvalidValue("attack", name, expected)
    return tuple(dict.fromkeys(names))


def _print_membership(
    results: list[MembershipResult], asked: AttackTarget, confidence: float, exposed: int
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
    print_table(("attack", "figure", "value", "low", "high"), rows, numbers=(2, 3, 4))
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


@attack.command(short_help="A hidden attribute of members.")
@click.option("--model", metavar="MODEL", required=True, help=MODEL)
@member_options
@click.option(
    "--auxiliary",
    metavar="FILE",
    required=True,
    help="Records that the attacker has without the model, to impute the attribute from.",
)
@click.option(
    "--attribute",
    "attribute_name",
    metavar="COLUMN",
    required=True,
    help="The hidden column; for NPZ files its number from 0, several with commas.",
)
@model_output_option
@label_option
@click.option(
    "--value",
    "values",
    metavar="VALUE",
    multiple=True,
    help="A candidate value of the column.  [default: those that are declared or occur]",
)
@click.option(
    "--prior",
    metavar="uniform|marginal|imputed",
    default="uniform",
    help="What the attacker believes of the attribute before asking the model.",
)
@click.option(
    "--allow-duplicates",
    is_flag=True,
    help="Equal records in two files belong to different people.",
)
@confidence_option
@seed_option
@page_option
def attribute(
    model: str,
    members: str,
    nonmembers: str,
    auxiliary: str,
    attribute_name: str,
    model_output: str | None,
    label: str,
    values: tuple[str, ...],
    output: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    r"""Guess a hidden attribute from the model's confidence in the true label.

    The guess is compared with imputation, which needs no model, and with records that the
    model never saw: what is guessed as well without the model, or for everybody, is no leak.
    CSV and Parquet files are joined by the names of their columns. The output is INTERNAL.

    Examples:
      discreet attack attribute --model model --members train.csv --nonmembers test.csv \
        --auxiliary other.csv --attribute smokes --output attribute.html
      discreet attack attribute --model study:target --members in.npz --nonmembers out.npz \
        --auxiliary more.npz --attribute 3,4,5
    """
    from discreet.attacks import attribute_inference, read_model

    with output_file(output, ".html") as draft:
        asked = read_model(model, label=label, output=model_output)
        files = {"members": members, "nonmembers": nonmembers, "auxiliary": auxiliary}
        sets = asked.read_all(files)
        pairs: dict[str, Any] = {name: records.pair for name, records in sets.items()}
        result = attribute_inference(
            asked.target,
            attribute=asked.attribute(attribute_name, values, sets["auxiliary"], number=real),
            **pairs,
            **settings,
        )
        if draft is not None:
            from discreet.report import attribute_page

            attribute_page(result, about={"model": asked.title, **asked.about}).write(draft)
    if as_json:
        print_json({"model": asked.title, "internal": True, **result.to_json()})
        return
    print_lines(str(result).splitlines())
    print_marked(output, internal=True)


@attack.command("property", short_help="A fact about the training data.")
@click.option(
    "--records",
    metavar="FILE",
    required=True,
    help="Records of the attacker, to draw training sets from.",
)
@click.option(
    "--train",
    metavar="MODULE:FUNCTION",
    required=True,
    help="function(records, labels) returns a model; it is imported and run.",
)
@click.option(
    "--has",
    metavar="COLUMN=VALUE",
    required=True,
    help="What a record has or has not; for NPZ files the number of the column.",
)
@click.option(
    "--shares",
    metavar="LOW,HIGH",
    required=True,
    help="The share of such records in sets without and with the property.",
)
@click.option("--size", type=Count(at_least=1), required=True, help="Records in a training set.")
@click.option(
    "--shadows", type=Count(at_least=4), default="100", help="How many shadow models to train."
)
@click.option(
    "--access",
    metavar="outputs|sorted|sets",
    multiple=True,
    help="Black box: outputs on queries; white box: weights with neurons sorted, or as sets. May "
    "be given several times.  [default: outputs]",
)
@click.option(
    "--queries", metavar="FILE", help="Records to ask models about.  [default: 200 of the records]"
)
@click.option("--target", metavar="MODULE:NAME", help="The model under attack, if there is one.")
@model_output_option
@label_option
@jobs_option
@confidence_option
@public_records_option
@seed_option
@page_option
def property_(
    records: str,
    train: str,
    has: str,
    shares: str,
    size: int,
    shadows: int,
    access: tuple[str, ...],
    queries: str | None,
    target: str | None,
    model_output: str | None,
    label: str,
    jobs: int,
    confidence: float,
    public_records: bool,
    seed: int | None,
    output: str | None,
    as_json: bool,
) -> None:
    r"""Learn from shadow models whether a training set had a property, such as many smokers.

    The accuracy is that on shadow models that the attack never learned from.

    Examples:
      discreet attack property --records mine.csv --train study:train --has smokes=1 \
        --shares 0.2,0.5 --size 500 --shadows 100 --jobs 2 --output property.html
    """
    from discreet.attacks import (
        OUTPUTS,
        align_columns,
        on_records,
        property_inference,
        property_sets,
        read_as,
        read_model,
        read_records,
        train_shadows,
    )

    kinds = [_ACCESS[one_of("access", name, tuple(_ACCESS))] for name in access or ("outputs",)]
    given = None if model_output is None else one_of("model_output", model_output, OUTPUTS)
    maker = _trainer(train)
    with output_file(output, ".html") as draft:
        own = read_records("records", records, label=label)
        asked = own.values[:200]
        if queries is not None:
            other = read_records("queries", queries, label=label)
            asked = align_columns(own.columns, "queries", queries, other, of=records).values
        judged = None if target is None else read_model(target, label=label).model
        limits = _pair("shares", shares, "two shares, as in 0.2,0.5", at_least=0, at_most=1)
        sets = property_sets(_mask(own, has), shares=limits, size=size, sets=shadows, seed=seed)
        models = train_shadows(on_records(maker, own.values, own.labels), sets, n_jobs=jobs)
        # Whoever reads weights needs the module itself.
        output_of = {kind: given if kind == "outputs" else None for kind in kinds}
        results = [
            property_inference(
                [read_as(model, output_of[kind]) for model in models],
                sets.holds,
                access=kind,
                queries=asked,
                target=None if judged is None else read_as(judged, output_of[kind]),
                held_out=sets.held_out,
                confidence=confidence,
                seed=sets.seed,
            )
            for kind in dict.fromkeys(kinds)
        ]
        if draft is not None:
            from discreet.report import property_page

            about = {"records": records, "property": f"{has} in {shares} of {size} records"}
            property_page(results, about=about, public_records=public_records).write(draft)
    if as_json:
        listed = [result.to_json() for result in results]
        print_json({"property": has, "internal": not public_records, "results": listed})
        return
    print_lines(line for result in results for line in str(result).splitlines())
    print_marked(output, internal=not public_records, unless=PUBLIC_RECORDS)


def _mask(own: Records, has: str) -> NDArray[Any]:
    import numpy as np

    column, equal, value = has.rpartition("=")
    if not equal or not column:
        raise InvalidValue("has", has, "COLUMN=VALUE, as in smokes=1")
    place = own.place("has", column, has)
    return np.asarray(own.values[:, place] == real("has", value), dtype=np.bool_)


def _pair(argument: str, text: str, expected: str, **limits: float) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise InvalidValue(argument, text, expected)
    return real(argument, parts[0], **limits), real(argument, parts[1], **limits)


@attack.command(short_help="The input that a class stands for.")
@click.option(
    "--model",
    metavar="MODULE:NAME",
    required=True,
    help="The model, in Python; it is imported and run.",
)
@click.option(
    "--shape",
    metavar="SHAPE",
    required=True,
    help="Of one record as the model takes it: 1x64x64, 4096.",
)
@model_output_option
@click.option(
    "--picture",
    metavar="HEIGHTxWIDTH",
    help="Of the picture in a flat record.  [default: the last two numbers of the shape]",
)
@click.option("--classes", metavar="LIST", help="0,1,5.  [default: all]")
@click.option("--bounds", metavar="LOW,HIGH", default="0,1", help="The range of valid values.")
@click.option("--steps", type=Count(at_least=1), default="200", help="Of gradient ascent.")
@click.option("--restarts", type=Count(at_least=1), default="3", help="Starts for a class.")
@click.option(
    "--smoothing", type=Real(at_least=0), default="1", help="Width of the blur in pixels."
)
@click.option(
    "--total-variation",
    type=Real(at_least=0),
    default="1e-3",
    help="Weight of the total variation.",
)
@click.option(
    "--frequencies",
    type=Count(at_least=1),
    default="12",
    help="Of a picture in each direction, along which a black box is climbed.",
)
@click.option(
    "--judge",
    metavar="MODULE:NAME",
    help="A model that was trained apart, to recognise the inverted inputs.",
)
@click.option("--judge-output", metavar="probabilities|logits|labels", help=_OUTPUT)
@click.option(
    "--photographs", metavar="FILE", help="NPZ of real records and labels to test the judge on."
)
@click.option("--save", metavar="FILE", help="Keep the inverted inputs (.npz). Internal.")
@seed_option
@page_option
def inversion(
    model: str,
    shape: str,
    model_output: str | None,
    picture: str | None,
    classes: str | None,
    bounds: str,
    judge: str | None,
    judge_output: str | None,
    photographs: str | None,
    save: str | None,
    output: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    r"""Climb to the input of which a model is surest, for every class.

    Where a class is a person, that input may be a picture of the person. The output is INTERNAL.

    Examples:
      discreet attack inversion --model study:faces --shape 1x64x64 --judge study:judge \
        --photographs photographs.npz --output inversion.html
    """
    from discreet.attacks import OUTPUTS, invert, read_model, read_records, recognition

    if (judge is None) != (photographs is None):
        raise InvalidValue("photographs", photographs, "a file if and only if with --judge")
    if judge_output is not None:
        one_of("judge_output", judge_output, OUTPUTS)
    size = None if picture is None else _sizes("picture", picture)
    if size is not None and len(size) != 2:
        raise InvalidValue("picture", picture, "a height and a width, as in 64x64")
    limits = _pair("bounds", bounds, "two numbers, as in 0,1")
    wanted = None if classes is None else [count("classes", c) for c in classes.split(",")]
    with (
        output_file(output, ".html") as draft,
        output_file(save, ".npz", argument="save") as arrays,
    ):
        asked = read_model(model, label="label", output=model_output)
        result = invert(
            asked.model,
            output=model_output,
            shape=_sizes("shape", shape),
            classes=wanted,
            picture=None if size is None else (size[0], size[1]),
            bounds=limits,
            **settings,
        )
        recognised = None
        if judge is not None and photographs is not None:
            known = read_records("photographs", photographs, label="label")
            recognised = recognition(
                result,
                read_model(judge, label="label", output=judge_output).model,
                output=judge_output,
                photographs=known.values,
                labels=known.labels,
            )
        if arrays is not None:
            import numpy as np

            np.savez_compressed(arrays, images=result.images, classes=np.array(result.classes))
        if draft is not None:
            from discreet.report import inversion_page

            about = {"model": asked.title, **({} if judge is None else {"judge": judge})}
            inversion_page(
                result, recognised=recognised, about=about, class_names=asked.class_names
            ).write(draft)
    if as_json:
        judged = None if recognised is None else recognised.to_json()
        facts = {"model": asked.title, "internal": True}
        print_json({**facts, **result.to_json(), "recognition": judged})
        return
    hint = "Confidence is what was climbed: give --judge to see who is recognised."
    print_lines([str(result), hint if recognised is None else str(recognised)])
    print_marked(save, output, internal=True)


def _sizes(argument: str, text: str) -> tuple[int, ...]:
    return tuple(count(argument, part, at_least=1) for part in text.lower().split("x"))


@attack.command(short_help="The pictures behind updates of federated clients.")
@click.option("--model", metavar="MODULE:NAME", required=True, help="The weights that were sent.")
@click.option(
    "--updates",
    metavar="FILE",
    required=True,
    help="NPZ with updates (clients x parameters: weights sent less weights returned, over the "
    "learning rate), and to judge by records (clients x examples x shape) and labels. Without "
    "updates they are made from the records.",
)
@click.option("--public", metavar="FILE", required=True, help="NPZ of public records and labels.")
@click.option("--method", metavar="analytic|match|cosine", default="analytic", help="How.")
@click.option("--steps", type=Count(at_least=1), default="300", help="Of a search.")
@click.option("--restarts", type=Count(at_least=1), default="1", help="Of a search.")
@click.option("--local-steps", type=Count(at_least=1), default="1", help="Steps of a client.")
@click.option("--local-rate", type=Real(above=0), default="1", help="Its learning rate.")
@click.option("--bounds", metavar="LOW,HIGH", default="0,1", help="The range of valid values.")
@confidence_option
@public_records_option
@seed_option
@page_option
def gradients(
    model: str,
    updates: str,
    public: str,
    bounds: str,
    public_records: bool,
    output: str | None,
    as_json: bool,
    **settings: Any,
) -> None:
    r"""Find the pictures that updates of federated clients were made from.

    A picture is identified if its reconstruction is nearer to it than to every public one. That a
    search fails proves nothing: what a guarantee is worth is shown by prior_informed in Python.

    Examples:
      discreet attack gradients --model study:network --updates updates.npz --public public.npz \
        --method cosine --output gradients.html
    """
    from discreet.attacks import client_updates, import_name, update_pictures

    limits = _pair("bounds", bounds, "two numbers, as in 0,1")
    seen, known = _read_arrays("updates", updates), _read_arrays("public", public)
    found = import_name("model", model)
    network = found if hasattr(found, "state_dict") else found()
    records, labels = seen["records"], seen["labels"]
    way = {name: settings[name] for name in ("local_steps", "local_rate")}
    rows = seen.get("updates")
    if rows is None:
        rows = client_updates(network, records, labels, **way)
    with output_file(output, ".html") as draft:
        result = update_pictures(
            network, rows, records, labels, (known["records"], known["labels"]),
            bounds=limits, **settings,
        )  # fmt: skip
        if draft is not None:
            from discreet.report import pictures_page

            pictures_page(
                result, records, about={"model": model}, bounds=limits,
                public_records=public_records,
            ).write(draft)  # fmt: skip
    if as_json:
        print_json({"model": model, "internal": not public_records, **result.to_json()})
        return
    low, high = result.psnr_interval
    blind = f"without an update {result.blind_psnr:.1f} dB"
    reached = f"median PSNR {result.psnr:.1f} dB [{low:.1f}, {high:.1f}], {blind}"
    print_lines([str(result.finding), reached])
    print_marked(output, internal=not public_records, unless=PUBLIC_RECORDS)


def _read_arrays(argument: str, path: str) -> dict[str, NDArray[Any]]:
    """Read a file of plain arrays; nothing in it is executed."""
    import zipfile

    import numpy as np

    expected = "a file .npz with the arrays records and labels"
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise FileUnusable(argument, path, f"{expected} ({type(error).__name__})") from None
    if not {"records", "labels"} <= set(found):
        raise FileUnusable(argument, path, expected)
    return found
