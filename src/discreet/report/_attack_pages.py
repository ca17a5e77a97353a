"""Pages of attacks: one for any attack of the registry, and richer ones of attacks on models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from discreet._rounding import interval
from discreet.attacks import AttackRun, Finding, PropertyResult
from discreet.errors import InvalidValue
from discreet.report._charts import Bar, bars, dots
from discreet.report._drawing import encode_png
from discreet.report._page import PUBLIC_RECORDS, Page, declared_public
from discreet.report._wording import (
    format_count,
    format_difference,
    format_level,
    format_percent,
    format_proportion,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from discreet._confidence import Proportion
    from discreet.attacks import (
        AttributeResult,
        InversionResult,
        RecognitionResult,
        UpdatePicturesResult,
    )

_SHOWN = 60
_LONGEST = 8


def attack_page(
    runs: AttackRun | Sequence[AttackRun],
    *,
    title: str = "Attacks",
    about: Mapping[str, str] | None = None,
    public_records: bool = False,
) -> Page:
    """Return a page of any attacks of the registry, from what the contract says about each.

    Parameters
    ----------
    runs : AttackRun or sequence of AttackRun
        What :func:`~discreet.attacks.run_attack` returned.
    title : str
        The title of the page.
    about : mapping, optional
        Facts about the experiment, for its first table.
    public_records : bool
        Whether the records are public or made up; without it the page is internal.

    Returns
    -------
    Page
        Findings beside chance, and what the results say of themselves; no single person.

    Raises
    ------
    InvalidValue
        If there is no run.
    """
    declared = declared_public(public_records)
    every = [runs] if isinstance(runs, AttackRun) else list(runs)
    if not every or not all(isinstance(run, AttackRun) for run in every):
        raise InvalidValue("runs", runs, "one or more runs of attacks")
    page = Page(title, internal=not declared, notice=PUBLIC_RECORDS if declared else None)
    page.finding(*map(_sentence, every))
    if about:
        page.table(("the experiment", ""), list(about.items()))
    found = [run.finding for run in every if run.finding is not None]
    if found:
        page.heading("What was found")
        for baseline in dict.fromkeys(one.baseline for one in found):
            alike = [one for one in found if one.baseline == baseline]
            page.picture(
                dots(
                    [Bar(one.attack, one.value, one.low, one.high) for one in alike],
                    title=", ".join(dict.fromkeys(one.measure for one in alike)),
                    mark=(baseline, "chance"),
                ),
                caption="A leak is shown where the whole interval lies beyond chance.",
            )
        page.table(
            ("attack", "measure", "value", "interval", "chance", "of"),
            [
                (
                    one.attack,
                    one.measure,
                    f"{one.value:.4g}",
                    _interval_of(one),
                    f"{one.baseline:.4g}",
                    format_count(one.trials),
                )
                for one in found
            ],
            numeric=(False, False, True, False, True, True),
        )
    for run in every:
        page.heading(f"{run.attack.name}: all figures")
        page.text(run.attack.summary)
        rows = [("family", run.attack.family), ("what the attacker sees", run.attack.access)]
        page.table(("", ""), [*rows, *_figures_of(run.result.to_json())])
    page.heading("What these figures do not say")
    return page.points(
        "A weak attack is no guarantee: a stronger one may come. Only a certificate of "
        "differential privacy bounds every attack.",
        "Each interval holds by itself; among many, some miss.",
    )


def _sentence(run: AttackRun) -> str:
    one = run.finding
    if one is None:
        return f"{run.attack.name}: {run.note}."
    state = "A leak is shown" if one.leaks else "No leak is shown"
    return (
        f"{state} by {one.attack}: {one.measure} {one.value:.3g} ({_interval_of(one)}), "
        f"{one.baseline:.3g} by chance, of {format_count(one.trials)}."
    )


def _interval_of(one: Finding) -> str:
    if one.confidence == 1.0:
        return "counted: no chance is part of it"
    return f"{interval(one.low, one.high)} at {format_level(one.confidence)}"


def _figures_of(found: Any, name: str = "") -> list[tuple[str, str]]:
    """Return the leaves of a result as rows; long lists by their length."""
    if isinstance(found, Mapping):
        inner = ((f"{name}: {key}" if name else str(key), one) for key, one in found.items())
        return [row for key, one in inner for row in _figures_of(one, key.replace("_", " "))]
    if isinstance(found, list) and (
        len(found) > _LONGEST or any(isinstance(one, Mapping | list) for one in found)
    ):
        return [(name, f"{format_count(len(found))} entries")]
    if isinstance(found, list):
        return [(name, ", ".join(map(_word, found)))]
    return [(name, _word(found))]


def _word(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def attribute_page(
    result: AttributeResult,
    *,
    title: str = "Attribute inference",
    about: Mapping[str, str] | None = None,
) -> Page:
    """Return a page about one attribute; it points at no single record.

    Parameters
    ----------
    result
        Of one attribute.
    title, about
        The title, and facts for its first table.

    Returns
    -------
    Page
        An internal page.
    """
    page = Page(title, internal=True)
    page.finding(
        f"{result.verdict[0].upper()}{result.verdict[1:]}.",
        f"What the attack wins over imputation is larger on members than on others by "
        f"{format_difference(result.excess)}.",
    )
    page.table(
        ("the experiment", ""),
        [
            *(about or {}).items(),
            ("attribute", result.attribute),
            ("candidate values", ", ".join(result.values)),
            ("members", format_count(result.attack_on_members.trials)),
            ("non-members", format_count(result.attack_on_nonmembers.trials)),
            ("prior of the attacker", result.prior),
            ("imputation by", result.imputer),
            ("questions to the model", format_count(result.queries)),
        ],
    )
    page.heading("Right guesses")
    pairs = {
        "attack": (result.attack_on_members, result.attack_on_nonmembers),
        "imputation, without the model": (
            result.imputation_on_members,
            result.imputation_on_nonmembers,
        ),
    }
    page.picture(
        bars(
            {name: [_bar("members", a), _bar("non-members", b)] for name, (a, b) in pairs.items()},
            title="attributes guessed right",
        ),
        caption="A leak is what the attack knows of members beyond what it knows of others, and "
        "beyond what anybody can guess who knows the population. "
        f"Lines: {format_level(result.confidence)} intervals.",
    )
    rows = [[name, format_proportion(a), format_proportion(b)] for name, (a, b) in pairs.items()]
    page.table(("", "members", "non-members"), rows)
    page.table(
        ("difference", ""),
        [
            ("attack, members less non-members", format_difference(result.gap)),
            ("imputation, members less non-members", format_difference(result.imputation_gap)),
            ("attack less imputation, on members", format_difference(result.gain_on_members)),
            (
                "attack less imputation, on non-members",
                format_difference(result.gain_on_nonmembers),
            ),
            ("excess: the former less the latter", format_difference(result.excess)),
        ],
    )
    page.heading("By value of the attribute")
    page.table(
        ("value", "group", "records", "found by the attack", "found by imputation"),
        [
            [
                row.value,
                row.group,
                format_count(row.records),
                format_count(row.attack),
                format_count(row.imputation),
            ]
            for row in result.by_value
        ],
        numeric=(False, False, True, True, True),
    )
    page.heading("What these figures do not say")
    return page.points(
        "A value that can be guessed for members and for others alike is known from the "
        "population, not from the model. It may still be wrong to use it.",
        "The imputation is as good as its learner: a better one would leave less to the attack.",
        "That no leak is shown does not mean that there is none.",
    )


def _bar(name: str, share: Proportion) -> Bar:
    return Bar(name, share.share, share.low, share.high)


# --- inversion -----------------------------------------------------------------------------


def inversion_page(
    result: InversionResult,
    *,
    recognised: RecognitionResult | None = None,
    title: str = "Model inversion",
    about: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Page:
    """Return a page about inverted classes; it is internal, because a class may be a person.

    Parameters
    ----------
    result
        The inverted inputs.
    recognised
        What a judge says of them.
    title, about
        The title, and facts for its first table.
    class_names
        What the classes are called.

    Returns
    -------
    Page
        An internal page.
    """
    page = Page(title, internal=True)
    if recognised is None:
        page.finding(
            "The pictures are those of which the model is surest. Whether they show anybody was "
            "not judged: the model's own confidence is what was climbed and proves nothing."
        )
    else:
        page.finding(
            f"{recognised.verdict[0].upper()}{recognised.verdict[1:]}.",
            f"A judge who was trained apart recognises {format_proportion(recognised.rate)} of the "
            f"{format_count(recognised.rate.trials)} inverted classes; guessing would recognise "
            f"{format_percent(recognised.chance)}.",
        )
    page.table(
        ("the experiment", ""),
        [
            *(about or {}).items(),
            ("classes", format_count(len(result.classes))),
            ("gradients", result.gradients),
            (
                "steps and restarts",
                f"{format_count(result.steps)} and {format_count(result.restarts)}",
            ),
            ("questions to the model", format_count(result.queries)),
            ("total variation, smoothing", f"{result.total_variation:g}, {result.smoothing:g}"),
        ],
    )
    if recognised is not None:
        page.heading("Recognised by an independent judge")
        rate, real = recognised.rate, recognised.photographs
        page.picture(
            bars(
                {
                    "recognised": [
                        Bar("inverted inputs", rate.share, rate.low, rate.high),
                        Bar("real records", real.share, real.low, real.high),
                    ]
                },
                title="assigned to the right class",
                mark=(recognised.chance, "chance"),
            ),
            caption="How well the judge does on real records says what could be reached at "
            f"most. Lines: {format_level(rate.confidence)} intervals.",
        )
        page.table(
            ("", "assigned to the right class"),
            [
                ("inverted inputs", format_proportion(rate)),
                ("real records", format_proportion(real)),
                ("chance", format_percent(recognised.chance)),
            ],
        )
    _pictures(page, result, recognised, class_names)
    page.heading("What these figures do not say")
    return page.points(
        "An inverted input is typical of a class. It shows a person only where a class is one "
        "person; it is no record of the training data.",
        "A judge may recognise what people do not, and the other way round.",
    )


def _pictures(
    page: Page,
    result: InversionResult,
    recognised: RecognitionResult | None,
    names: Sequence[str] | None,
) -> None:
    titles = [names[label] if names is not None else f"class {label}" for label in result.classes]
    guesses = None if recognised is None else recognised.guesses
    words = [
        f"{title}: {format_percent(float(confidence))} sure"
        + (
            ""
            if guesses is None
            else ", recognised"
            if guesses[at] == label
            else ", not recognised"
        )
        for at, (title, confidence, label) in enumerate(
            zip(titles, result.confidences, result.classes, strict=True)
        )
    ]
    page.heading("The inverted inputs")
    page.warning("INTERNAL: unsafe to publish. A picture may show a person.")
    pairs = list(zip(words, result.images, strict=True))[:_SHOWN]
    if result.picture is None:
        page.table(("class", "input"), [(word, _numbers(values)) for word, values in pairs])
        return
    page.gallery([(_image(values, result), word) for word, values in pairs])


def _image(values: NDArray[np.float64], result: InversionResult) -> bytes:
    assert result.picture is not None
    channels = values.reshape(-1, *result.picture)
    # Other numbers of channels have no colours: the first one is shown.
    return encode_png(channels if len(channels) in {1, 3} else channels[0], bounds=result.bounds)


def _numbers(values: NDArray[np.float64]) -> str:
    flat = values.ravel()
    return ", ".join(f"{value:.3g}" for value in flat[:12]) + (", ..." if flat.size > 12 else "")


# --- property inference --------------------------------------------------------------------


def property_page(
    results: PropertyResult | Sequence[PropertyResult],
    *,
    title: str = "Property inference",
    about: Mapping[str, str] | None = None,
    public_records: bool = False,
) -> Page:
    """Return a page about one property by one or several kinds of access.

    It is internal, because shadow models and target were trained on records; ``public_records``
    says that these are public or made up.

    Parameters
    ----------
    results
        Of one property, by one or several kinds of access.
    title, about
        The title, and facts for its first table.
    public_records
        Whether the records are public or made up.

    Returns
    -------
    Page
        Internal, unless they are.

    Raises
    ------
    InvalidValue
        If there is no result.
    """
    declared = declared_public(public_records)
    every = [results] if isinstance(results, PropertyResult) else list(results)
    if not every or not all(isinstance(result, PropertyResult) for result in every):
        raise InvalidValue("results", results, "one or more property results")
    best = max(every, key=lambda result: result.accuracy.share)
    page = Page(title, internal=not declared, notice=PUBLIC_RECORDS if declared else None)
    page.finding(
        f"By {best.access}: {best.verdict}.",
        f"{format_proportion(best.accuracy)} of {format_count(best.accuracy.trials)} held-out "
        "shadow models were told apart rightly; always guessing the same would reach "
        f"{format_percent(best.chance)}.",
    )
    if about:
        page.table(("the experiment", ""), list(about.items()))
    page.heading("Held-out shadow models told apart")
    accuracy = [
        Bar(result.access, result.accuracy.share, result.accuracy.low, result.accuracy.high)
        for result in every
    ]
    page.picture(
        bars({"accuracy": accuracy}, title="right answers", mark=(best.chance, "chance")),
        caption="Models that the meta-classifier never met. Lines: "
        f"{format_level(best.accuracy.confidence)} intervals.",
    )
    rows = [
        [
            result.access,
            format_proportion(result.accuracy),
            format_proportion(result.with_property),
            format_proportion(result.without_property),
            f"{result.auc:.3f} ({interval(*result.auc_interval, digits=3)})",
            format_count(result.training_shadows),
            "" if result.target_score is None else f"{result.target_score:.3f}",
        ]
        for result in every
    ]
    page.table(
        (
            "access",
            "accuracy",
            "with the property",
            "without",
            "area",
            "shadows to learn from",
            "score of the target",
        ),
        rows,
        numeric=(False, False, False, False, True, True, True),
    )
    page.heading("What these figures do not say")
    return page.points(
        "The figure is about shadow models of the attacker; a target that was trained "
        "differently may be harder to read.",
        "Differential privacy protects single records. A fact about the whole training set, such "
        "as a share of a large group, is not hidden by it.",
    )


def pictures_page(
    result: UpdatePicturesResult,
    truth: NDArray[np.float64],
    *,
    title: str = "Pictures from updates",
    about: Mapping[str, str] | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
    public_records: bool = False,
) -> Page:
    """Return a page of the pictures behind updates, beside what an attack made of them.

    Parameters
    ----------
    result
        What :func:`~discreet.attacks.update_pictures` returned.
    truth
        The pictures of the clients, in the same order.
    title, about
        The title, and facts for its first table.
    bounds
        The range of a number of a picture.
    public_records
        Whether the pictures are public or made up; without it the page is internal.

    Returns
    -------
    Page
        Findings beside chance, and the pictures.
    """
    internal = not public_records
    page = Page(title, internal=internal)
    page.finding(
        f"The attack identifies {format_proportion(result.identified)} of the "
        f"{format_count(result.identified.trials)} pictures; chance is at most "
        f"{format_percent(result.chance)}.",
        "That a search fails proves nothing: it fails at noise that guarantees nothing.",
    )
    low, high = result.psnr_interval
    page.table(
        ("the experiment", ""),
        [
            *(about or {}).items(),
            ("method", result.method),
            ("nearer than constant and class mean", format_proportion(result.clearer)),
            ("median PSNR in dB, its interval", f"{result.psnr:.1f}, {low:.1f} to {high:.1f}"),
            ("without an update, in dB", f"{result.blind_psnr:.1f}"),
        ],
    )
    page.heading("Originals and reconstructions")
    if internal:
        page.warning("INTERNAL: unsafe to publish. These are pictures of clients.")
    size = truth.shape[-2:]
    pairs = zip(truth.reshape(-1, *size), result.reconstructions.reshape(-1, *size), strict=True)
    shown = []
    for (own, made), decibels in list(zip(pairs, result.psnr_each, strict=True))[:_SHOWN]:
        shown.append((encode_png(own, bounds=bounds), "original"))
        shown.append((encode_png(made, bounds=bounds), f"{float(decibels):.1f} dB"))
    page.gallery(shown)
    return page
