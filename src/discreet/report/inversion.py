"""The page for model inversion (S29): the inputs that classes stand for, and who is recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from discreet.report.figures import Bar, bars
from discreet.report.images import png
from discreet.report.page import Page
from discreet.report.words import level, percent, plain, with_interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from discreet.attacks import InversionResult, RecognitionResult

__all__ = ["inversion_page"]

_SHOWN = 60


def inversion_page(
    result: InversionResult,
    *,
    recognised: RecognitionResult | None = None,
    title: str = "Model inversion",
    about: Mapping[str, str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Page:
    """Return a page about inverted classes; it is internal, because a class may be a person."""
    page = Page(title, internal=True)
    if recognised is None:
        page.finding(
            "The pictures are those of which the model is surest. Whether they show anybody was "
            "not judged: the model's own confidence is what was climbed and proves nothing."
        )
    else:
        page.finding(
            f"{recognised.verdict[0].upper()}{recognised.verdict[1:]}.",
            f"A judge who was trained apart recognises {with_interval(recognised.rate)} of the "
            f"{plain(recognised.rate.trials)} inverted classes; guessing would recognise "
            f"{percent(recognised.chance)}.",
        )
    page.table(
        ("the experiment", ""),
        [
            *(about or {}).items(),
            ("classes", plain(len(result.classes))),
            ("gradients", result.gradients),
            ("steps and restarts", f"{plain(result.steps)} and {plain(result.restarts)}"),
            ("questions to the model", plain(result.queries)),
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
            f"most. Lines: {level(rate.confidence)} intervals.",
        )
        page.table(
            ("", "assigned to the right class"),
            [
                ("inverted inputs", with_interval(rate)),
                ("real records", with_interval(real)),
                ("chance", percent(recognised.chance)),
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
        f"{title}: {percent(float(confidence))} sure"
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
    return png(channels if len(channels) in {1, 3} else channels[0], bounds=result.bounds)


def _numbers(values: NDArray[np.float64]) -> str:
    flat = values.ravel()
    return ", ".join(f"{value:.3g}" for value in flat[:12]) + (", ..." if flat.size > 12 else "")
