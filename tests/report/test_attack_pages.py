"""Pages of attacks: they say what the results say, and point at nobody unless asked to."""

import dataclasses
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression

from discreet._confidence import proportion
from discreet.attacks import (
    AttackRun,
    Attribute,
    InversionResult,
    MembershipResult,
    PropertyResult,
    RecognitionResult,
    as_target,
    attribute_inference,
    invert,
    link_tables,
    made_up_tables,
    measure_anonymity,
    run_attack,
)
from discreet.errors import InvalidValue
from discreet.privacy import PureDP
from discreet.report import (
    Page,
    anonymity_page,
    attack_page,
    attribute_page,
    inversion_page,
    linkage_page,
    membership_page,
    property_page,
    strongest_attack,
    within_guarantee,
)
from discreet.report._charts import roc
from discreet.report._drawing import inline_svg
from discreet.report._wording import format_percent
from oracles.browser import assert_self_contained


def result(name: str = "lira online", *, shift: float = 1.0, count: int = 400) -> MembershipResult:
    rng = np.random.default_rng(4)
    members = np.arange(2 * count) < count
    scores = rng.normal(0, 1, 2 * count) + shift * members
    return MembershipResult(
        name, scores, members, np.arange(2 * count) % 3, np.arange(2 * count), scores > 1, 1.0
    )


def body(page: Page) -> str:
    """The text of a page without its pictures and its style."""
    text = re.sub(r"<(svg|style)\b.*?</\1>", " ", page.html(), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def pictures(page: Page) -> int:
    return page.html().count("<svg")


def lines_of(figure: Figure) -> dict[str, Any]:
    """The lines of a picture by their names in the legend."""
    legend = figure.axes[0].get_legend()
    assert legend is not None
    return {
        text.get_text(): line
        for text, line in zip(legend.get_texts(), figure.axes[0].lines, strict=True)
    }


def test_the_curve_is_logarithmic_and_shows_what_tpr_at_says() -> None:
    measured = result()
    figure = roc([measured], allowed=([0.1, 1.0], [0.2, 1.0], "allowed"))
    axes = figure.axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    line = lines_of(figure)["lira online"]
    assert line.get_drawstyle() == "steps-post"
    rates, shares = line.get_data()
    # The first point is the smallest rate that 400 non-members support; none is below it.
    assert rates[0] == 1 / 400
    for rate, share in zip(rates, shares, strict=True):
        assert math.isnan(share) or share == measured.tpr_at(rate).share
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].min() > 0
    for rate, share in zip(rates, shares, strict=True):
        here = band[band[:, 0] == rate, 1]
        assert math.isnan(share) or here.min() <= share <= here.max()
    chance = lines_of(figure)["chance"]
    assert list(chance.get_xdata()) == list(chance.get_ydata())
    assert list(lines_of(figure)["allowed"].get_ydata()) == [0.2, 1.0]


def test_an_attack_that_finds_nobody_at_the_left_edge_can_be_drawn() -> None:
    figure = roc([result(shift=-3.0)])
    assert math.isnan(lines_of(figure)["lira online"].get_ydata()[0])
    assert "nan" not in inline_svg(figure, salt="x")


def test_the_curve_and_the_scores_are_also_in_tables() -> None:
    measured = result()
    text = body(membership_page(measured, exposed=1))
    for rate in (0.003, 0.01, 0.03, 0.1, 0.3, 0.5):
        share = measured.tpr_at(rate).share
        assert re.search(rf" {100 * rate:g}\s% {format_percent(share).replace(' ', '.')}", text), (
            rate
        )
    assert "0.1 % too few non-members" in text
    assert f"50 % {np.sort(measured.member_scores)[199]:.4g}" in text


def test_attacks_on_real_members_are_internal_unless_they_are_declared_public() -> None:
    measured = result()
    page = membership_page(measured, exposed=0)
    assert page.internal
    assert "INTERNAL Unsafe to publish. How well an attack on real members works" in body(page)
    declared = membership_page(measured, exposed=0, public_members=True)
    assert not declared.internal
    assert "PUBLIC The members were declared to be canaries or public data" in body(declared)
    assert "INTERNAL" not in body(declared)
    assert "PUBLIC FIGURES" not in body(page) + body(declared)
    with pytest.raises(InvalidValue, match="public_members"):
        membership_page(measured, public_members=1)  # type: ignore[arg-type]


def test_small_classes_are_left_out_of_pages_without_single_records() -> None:
    labels = np.repeat([0, 0, 1, 1, 2, 2], [9, 40, 10, 10, 40, 40])
    members = np.repeat([True, False] * 3, [9, 40, 10, 10, 40, 40])
    scores = np.arange(149.0) % 17
    measured = MembershipResult("x", scores, members, labels, np.arange(149))
    names = ["seldom", "small", "large"]
    text = body(membership_page(measured, exposed=0, public_members=True, class_names=names))
    assert "small" in text
    assert "seldom" not in text
    assert "Classes with fewer than 10 members or non-members are left out." in text
    assert "seldom" in body(membership_page(measured, exposed=1, class_names=names))


def test_the_page_says_how_each_threshold_was_set() -> None:
    plain = result()
    told = [
        dataclasses.replace(
            plain, attack=name, metadata={"threshold_from": by, "threshold_saw_evaluated": saw}
        )
        for name, by, saw in (("one", "the members", True), ("two", "public records", False))
    ]
    text = body(membership_page([*told, plain], exposed=0))
    assert "Decisions of one: the threshold was set by the members. The evaluated records" in text
    assert "two: the threshold was set by public records, apart from the records that" in text
    assert "lira online: the threshold was set by means that the result does not tell." in text
    assert "without the records that it is judged on" not in text
    assert "set the threshold beforehand" not in text


def test_a_public_page_points_at_no_record_and_an_internal_one_says_so() -> None:
    measured = result()
    public = membership_page(measured, exposed=0, public_members=True)
    internal = membership_page(measured, exposed=5, public_members=True)
    assert not public.internal
    assert "exposed records" not in body(public)
    assert internal.internal
    text = body(internal)
    assert "INTERNAL: unsafe to publish" in text
    for one in measured.most_exposed(5):
        assert f" {one.record} " in text
    # The histogram of scores is about single records as well when there are few.
    assert pictures(public) == pictures(internal) - 1


def test_figures_of_the_page_are_those_of_the_result() -> None:
    weak, strong = result("yeom", shift=0.2), result("lira online", shift=2.0)
    assert strongest_attack([weak, strong]) is strong
    page = membership_page([weak, strong], exposed=0, class_names=["cat", "dog", "cow"])
    text = body(page)
    assert f"{strong.auc:.3f}" in text
    assert f"{100 * strong.tpr_at(0.01).share:.1f} %" in text
    # 400 non-members cannot support 0.1 %.
    assert "needs 1,000 non-members" in text
    assert "By class: lira online" in text
    assert "cow" in text
    assert pictures(page) == 2


def test_chance_is_called_chance() -> None:
    text = body(membership_page(result(shift=0.0), exposed=0))
    assert "the attack shows nothing" in text
    assert "behaves differently" not in text


def test_a_curve_outside_of_the_certificate_is_called_wrong() -> None:
    loss = PureDP(epsilon=0.1)
    held = body(membership_page(result(shift=0.0), exposed=0, loss=loss))
    assert "At no threshold does a measured curve lie outside" in held
    assert "does not confirm the certificate" in held
    for shift in (3.0, -3.0):
        broken = body(membership_page(result(shift=shift), exposed=0, loss=loss))
        assert "WARNING: a measured curve lies outside" in broken
    few = body(membership_page(result(shift=3.0, count=9), exposed=0, loss=loss))
    assert "too few records to compare" in few
    assert "WARNING" not in few


def test_a_violation_far_from_the_reported_rates_is_called_wrong() -> None:
    """Every member and each second non-member have one score: the one threshold is at FPR 1/2."""
    members = np.arange(800) < 400
    scores = np.where(members, 1.0, np.arange(800) % 2)
    found = MembershipResult("x", scores, members, np.zeros(800, int), np.arange(800))
    assert all(point.tpr.share == 0 for point in found.operating_points())
    loss = PureDP(epsilon=0.1)
    assert "WARNING: a measured curve lies" in body(membership_page(found, exposed=0, loss=loss))
    assert not within_guarantee(found, loss)
    assert within_guarantee(found, PureDP(epsilon=10))


def test_membership_pages_refuse_what_is_no_result() -> None:
    for wrong in ([], [3], "lira"):
        with pytest.raises(InvalidValue, match="results"):
            membership_page(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="exposed"):
        membership_page(result(), exposed=-1)


def only_public_if_declared(make: Callable[..., Page]) -> None:
    """Whatever was computed from private records is internal; nobody is asked twice."""
    assert make().internal
    assert "INTERNAL This page was computed from private records" in body(make())
    declared = make(public_records=True)
    assert not declared.internal
    assert "PUBLIC The records were declared to be public or made up" in body(declared)
    for wrong in (1, "yes", None):
        with pytest.raises(InvalidValue, match="public_records"):
            make(public_records=wrong)


def test_anonymity_page() -> None:
    tables = made_up_tables(3000, seed=1)
    found = measure_anonymity(
        tables.released,
        quasi_identifiers=["zip", "birth", "sex"],
        sensitive=["diagnosis"],
        generalise=["birth:year", "zip:prefix=3"],
    )
    page = anonymity_page(found, about={"file": "made up"}, public_records=True)
    text = body(page)
    only_public_if_declared(partial(anonymity_page, found))
    assert f"{found.profile.unique_rows} of 300" in text
    assert "birth:year, zip:prefix=3" in text
    assert_self_contained(page.html())
    assert pictures(page) > 0
    shown = anonymity_page(found, exposed=3, public_records=True)
    assert shown.internal
    assert "INTERNAL: unsafe to publish" in body(shown)
    # Other levels than the default ones, without 2.
    odd = measure_anonymity(tables.released, quasi_identifiers=["zip"], k=[4, 7])
    assert "fewer than 7" in body(anonymity_page(odd))


def test_linkage_page() -> None:
    tables = made_up_tables(3000, seed=1)
    keys = ["zip", "birth", "sex"]
    known = link_tables(
        tables.released, tables.register, on=keys, tolerance={"birth": 1}, truth="person"
    )
    text = body(linkage_page(known))
    only_public_if_declared(partial(linkage_page, known))
    assert known.truth is not None
    assert f"{100 * known.truth.reidentified.share:.1f} %" in text
    assert "birth (within 1)" in text
    unknown = link_tables(tables.released, tables.register, on=keys)
    assert "is not known here" in body(linkage_page(unknown))
    listed = linkage_page(unknown, exposed=2, public_records=True)
    first = int(np.flatnonzero(unknown.match >= 0)[0])
    assert listed.internal
    assert f"{first} {unknown.match[first]:,}" in body(listed)
    nobody = link_tables({"a": ["1"], "w": ["x"]}, {"a": ["2"], "w": ["x"]}, on=["a"], truth="w")
    assert "no match" in body(linkage_page(nobody))


def test_attribute_page() -> None:
    rng = np.random.default_rng(2)
    records = np.column_stack([rng.integers(0, 2, 300), rng.normal(size=(300, 2))])
    labels = (records[:, 1] > 0).astype(int)
    target = as_target(lambda x: 1 / (1 + np.exp(-x[:, 0] - x[:, 1])), output="probabilities")
    found = attribute_inference(
        target,
        attribute=Attribute("smokes", columns=0, candidates=[0, 1], values=["no", "yes"]),
        members=(records[:100], labels[:100]),
        nonmembers=(records[100:200], labels[100:200]),
        auxiliary=(records[200:], labels[200:]),
        imputer=LogisticRegression(),
        seed=1,
    )
    page = attribute_page(found, about={"model": "made up"})
    text = body(page)
    assert page.internal
    assert found.verdict[1:] in text
    assert "imputation, without the model" in text
    assert f"{100 * found.attack_on_members.share:.1f} %" in text
    assert_self_contained(page.html())
    assert pictures(page) > 0


def test_property_page() -> None:
    found = PropertyResult(
        access="outputs",
        features=40,
        training_shadows=50,
        accuracy=proportion(45, 50),
        with_property=proportion(23, 25),
        without_property=proportion(22, 25),
        auc=0.97,
        chance=0.5,
        classifier="LogisticRegression",
        target_score=0.8,
    )
    page = property_page([found, found])
    assert "90.0 %" in body(page)
    assert "0.800" in body(page)
    assert_self_contained(page.html())
    assert pictures(page) > 0
    only_public_if_declared(partial(property_page, found))
    with pytest.raises(InvalidValue, match="results"):
        property_page([])


def inverted(shape: tuple[int, ...]) -> InversionResult:
    weights = np.linspace(-1, 1, 2 * math.prod(shape)).reshape(2, -1)
    return invert(
        as_target(lambda x: x.reshape(len(x), -1) @ weights.T, output="logits", classes=2),
        shape=shape,
        steps=3,
        restarts=1,
        frequencies=2,
        seed=1,
    )


def test_inversion_page() -> None:
    found = inverted((1, 4, 4))
    page = inversion_page(found)
    assert page.internal
    assert page.html().count("data:image/png;base64,") == 2
    assert "proves nothing" in body(page)
    judged = RecognitionResult(proportion(1, 2), proportion(9, 10), 0.5, (0, 0), (0, 1))
    text = body(inversion_page(found, recognised=judged, class_names=["Ann", "Bob"]))
    assert "Ann: " in text
    assert "sure, recognised" in text
    assert "Bob: " in text
    assert "sure, not recognised" in text
    assert "unsafe to publish" in text
    flat = inversion_page(inverted((3,)))
    assert "data:image" not in flat.html()


# --- the page of any attack -----------------------------------------------------------------------


def runs() -> list[AttackRun]:
    rng = np.random.default_rng(3)
    bits, sets = rng.random(40) < 0.5, rng.random((160, 40)) < 0.5
    answers = {"answers": sets @ bits.astype(float), "queries": sets, "secrets": bits}
    table = {"released": {"zip": ["1", "1", "2", "3"]}, "quasi_identifiers": ["zip"]}

    def model(rows: Any) -> Any:
        one = 1 / (1 + np.exp(-rows.sum(axis=1)))
        return np.stack([1 - one, one], axis=1)

    inverted = {"target": as_target(model, output="probabilities"), "shape": (2,)}
    return [
        run_attack("reconstruction", answers),
        run_attack("measure_anonymity", table),
        run_attack("invert", inverted, steps=2, seed=1),
    ]


def test_any_attack_has_a_page_that_says_what_its_finding_says() -> None:
    found = runs()
    page = attack_page(found, about={"records": "made up"})
    text = body(page)
    first = found[0].finding
    assert first is not None
    assert f"A leak is shown by reconstruction: {first.measure} 1 (" in text
    assert "counted: no chance is part of it" in text
    assert found[2].note in text
    assert "accuracy: trials 40" in text
    assert page.internal
    assert "INTERNAL" in text
    assert pictures(page) == 2  # one for each level of chance; an inversion has none
    assert_self_contained(page.html())
    assert not attack_page(found[1], public_records=True).internal
    # An interval that touches chance is no leak, and the page does not call it one.
    touching = dataclasses.replace(first, low=first.baseline)
    planted = dataclasses.replace(found[0], finding=touching)
    assert "No leak is shown by reconstruction" in body(attack_page(planted))


def test_a_page_of_nothing_is_refused() -> None:
    for wrong in ([], "yeom", [result()]):
        with pytest.raises(InvalidValue, match="runs"):
            attack_page(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="public_records"):
        attack_page(runs()[0], public_records="yes")  # type: ignore[arg-type]
