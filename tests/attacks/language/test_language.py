"""S36: canaries, exposure, extraction, recitals and membership of texts.

Each attack is made on a target that knows its corpus by heart and on targets that have no part in
it. Where a test is statistical, its false-alarm rate is one in a million.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attacks.language.made_up_models import (
    CODES,
    LETTERS,
    blind,
    by_heart,
    chance,
    decode,
    encode,
    random_texts,
    wrap,
)
from discreet.attacks import ATTACKS, run_attack
from discreet.attacks.language import (
    Canaries,
    Canary,
    _exposure,
    _extraction,
    _text_membership,
    as_language_model,
    canary_exposure,
    draws_needed,
    extraction,
    longest_passage,
    make_canaries,
    read_canaries,
    recital,
    text_membership,
)
from discreet.errors import FileUnusable, InvalidValue, NotApplicable, SchemaError
from discreet.privacy import PureDP
from discreet.randomness import source

RARE = 1e-6
TEMPLATE = "the door code of {name} is {digits:3}."


def canaries(count: int = 20, copies: tuple[int, ...] = (1,), template: str = TEMPLATE) -> Canaries:
    return make_canaries(template, count, copies=copies, source=source(insecure_seed=3))


# --- canaries --------------------------------------------------------------------------------


def test_canaries_have_secrets_of_their_own_and_come_as_often_as_they_have_copies() -> None:
    made = canaries(4, copies=(0, 1, 3))
    assert [one.copies for one in made] == [0] * 4 + [1] * 4 + [3] * 4
    assert len({one.before for one in made}) == 12
    texts = made.texts()
    assert len(texts) == 4 + 3 * 4
    assert texts.count(made[-1].text) == 3
    only = np.arange(12) == 4
    assert made.texts(only) == [made[4].text]
    assert made[4].text not in repr(made) + repr(made[4])
    assert made[0].space == 1000


def test_secrets_are_uniform() -> None:
    made = make_canaries("{letters:8}", 500, source=source(insecure_seed=5))
    letters = "".join(one.secret for one in made)
    counts = np.array([letters.count(letter) for letter in made[0].alphabet])
    # Chi-square of 25 degrees of freedom: above 80 with a probability of 1e-7.
    assert float(((counts - 4000 / 26) ** 2 / (4000 / 26)).sum()) < 80


def test_canaries_are_read_back(tmp_path: Path) -> None:
    made = canaries(3, copies=(0, 2))
    assert read_canaries(made.save(tmp_path / "canaries.json")) == made


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("[]", "is no file of canaries"),
        ('{"schema": "discreet.attacks.canaries", "version": 2}', "is no file of canaries"),
        ('{"schema": "discreet.attacks.canaries", "version": 1}', "a canary is wrong"),
        (
            (
                '{"schema": "discreet.attacks.canaries", "version": 1, "canaries": [{"before": '
                '"a", "secret": "x", "after": "", "alphabet": "01", "copies": 1}]}'
            ),
            "a canary is wrong: canaries = 'a': expected secrets of letters of their alphabet",
        ),
        ("{", "is not JSON"),
    ],
)
def test_other_files_are_refused(content: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "canaries.json"
    path.write_text(content)
    with pytest.raises(SchemaError, match=error):
        read_canaries(path)
    with pytest.raises(FileUnusable):
        read_canaries(tmp_path / "missing.json")


@pytest.mark.parametrize("template", ["no secret", "{digits:2} {digits:2}", "{digits:0}", 5])
def test_a_template_needs_one_secret(template: Any) -> None:
    with pytest.raises(InvalidValue, match="a text with one secret"):
        make_canaries(template, 1)


def test_names_must_suffice() -> None:
    with pytest.raises(InvalidValue, match="2 different ones"):
        make_canaries(TEMPLATE, 2, names=["ann", "ann"])
    made = make_canaries(TEMPLATE, 2, names=["ann", "bob"])
    assert [one.before for one in made] == ["the door code of ann is ", "the door code of bob is "]


# --- models ----------------------------------------------------------------------------------


def test_scores_of_long_texts_do_not_depend_on_other_texts() -> None:
    model = chance(2)
    short, long = random_texts(1, 20, 0)[0], random_texts(1, 300, 1)[0]
    together = model.score([encode(short), encode(long)])
    alone = model.score([encode(long)])[0]
    assert len(alone.log_probabilities) == 299
    np.testing.assert_allclose(together[1].log_probabilities, alone.log_probabilities, rtol=1e-12)
    np.testing.assert_allclose(
        together[0].log_probabilities[5],
        model.next_log_probabilities(np.array([encode(short)[:6]]))[0, encode(short)[6]],
        rtol=1e-12,
    )


def test_windows_of_a_long_text_see_at_least_half_of_the_context() -> None:
    seen: list[int] = []

    def model(rows: Any) -> Any:
        seen.append(rows.shape[1])
        return np.zeros((*rows.shape, len(LETTERS)))

    scores = wrap(model, context=10).score([encode("a" * 37)])[0]
    np.testing.assert_allclose(scores.log_probabilities, -math.log(len(LETTERS)), rtol=1e-12)
    assert len(scores.log_probabilities) == 36
    assert max(seen) <= 10


def test_moments_are_those_of_the_next_token() -> None:
    logits = np.log([0.5, 0.25, 0.125, 0.125])
    model = as_language_model(
        lambda rows: np.broadcast_to(logits, (*rows.shape, 4)),
        encode=lambda text: [int(one) for one in text],
        context=8,
    )
    scores = model.score([[0, 1, 3]])[0]
    mean = float((np.exp(logits) * logits).sum())
    spread = math.sqrt(float((np.exp(logits) * (logits - mean) ** 2).sum()))
    np.testing.assert_allclose(scores.log_probabilities, logits[[1, 3]], rtol=1e-12)
    np.testing.assert_allclose(scores.means, mean, rtol=1e-12)
    np.testing.assert_allclose(scores.deviations, spread, rtol=1e-12)


def test_a_start_token_has_the_first_token_predicted() -> None:
    model = wrap(lambda rows: np.zeros((*rows.shape, len(LETTERS))), start=3)
    assert len(model.score([encode("abc")])[0].log_probabilities) == 3
    assert model.continue_text([], 2) == [0, 0]
    with pytest.raises(InvalidValue, match="a model with a start"):
        blind().continue_text([], 1)


def test_draws_follow_the_model() -> None:
    model = wrap(
        lambda rows: np.broadcast_to(
            np.where(np.arange(len(LETTERS)) < 2, 0.0, -60.0), (*rows.shape, len(LETTERS))
        )
    )
    drawn = model.continue_text([0], 400, rng=np.random.default_rng(0))
    assert set(drawn) == {0, 1}
    assert 120 < drawn.count(0) < 280  # beyond with a probability below 1e-14


@pytest.mark.parametrize(
    ("model", "options", "error"),
    [
        (lambda rows: np.zeros((*rows.shape, 4)), {}, "how many tokens the model reads"),
        (lambda rows: np.zeros(rows.shape), {"context": 8}, "logits of shape"),
        (
            lambda rows: np.zeros((*rows.shape, 4)) + rows.sum(axis=1)[:, None, None],
            {"context": 8},
            "reads from left to right",
        ),
        (lambda rows: np.zeros((*rows.shape, 4)), {"context": 1}, "context"),
        ("a model", {"context": 8}, "a network or a function"),
    ],
)
def test_models_that_will_not_do_are_refused(
    model: Any, options: dict[str, Any], error: str
) -> None:
    if callable(model) and "left to right" in error:
        before = model
        model = lambda rows: before(rows) * np.arange(4)  # noqa: E731
    with pytest.raises(InvalidValue, match=error):
        as_language_model(model, encode=encode, **options)
    with pytest.raises(InvalidValue, match="or a tokenizer"):
        as_language_model(model, context=8)


def test_texts_with_unknown_characters_are_refused_without_being_shown() -> None:
    with pytest.raises(InvalidValue, match="characters that the model knows") as caught:
        text_membership(blind(), ["private Ü"], ["other"])
    assert "private" not in str(caught.value)
    odd = as_language_model(
        lambda rows: np.zeros((*rows.shape, 42)), encode=lambda text: [99], context=8
    )
    with pytest.raises(InvalidValue, match="tokens from 0 to 41"):
        text_membership(odd, ["a"], ["b"])
    with pytest.raises(InvalidValue, match=r"texts \(str\)"):
        text_membership(blind(), [b"bytes"], ["other"])  # type: ignore[list-item]


def test_a_torch_network_is_asked_in_eval_mode_and_left_as_it_was() -> None:
    import torch

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(len(LETTERS), 8)
            self.reads = torch.nn.GRU(8, 8, batch_first=True)
            self.says = torch.nn.Linear(8, len(LETTERS))
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, rows: Any) -> Any:
            return self.says(self.drop(self.reads(self.table(rows))[0]))

    torch.manual_seed(0)
    network = Recurrent()
    network.drop.eval()
    model = as_language_model(network, encode=encode, decode=decode, context=32)
    network.drop.train()
    first, second = (model.score([encode("hello")])[0].log_probabilities for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert network.training
    assert network.drop.training


# --- exposure --------------------------------------------------------------------------------


def every_loss(model: Any, canary: Canary) -> dict[str, float]:
    head = len(canary.before) - 1
    secrets = [f"{one:03d}" for one in range(1000)]
    scores = model.score([encode(canary.before + one) for one in secrets])
    return {
        one: -float(said.log_probabilities[head:].sum())
        for one, said in zip(secrets, scores, strict=True)
    }


def test_the_exact_rank_is_that_of_brute_force() -> None:
    made, model = canaries(3), chance(4)
    found = canary_exposure(model, made)
    for one, p_value, bits in zip(made, found.p_values, found.bits, strict=True):
        losses = every_loss(model, one)
        rank = sum(loss <= losses[one.secret] + 1e-9 for loss in losses.values())
        assert p_value == pytest.approx(rank / 1000, rel=1e-12)
        assert bits == pytest.approx(math.log2(1000) - math.log2(rank), rel=1e-9)


def test_the_list_of_all_secrets_and_the_tree_agree() -> None:
    made, model = canaries(3), chance(4)
    for one in made:
        assert _exposure._exact_by_list(model, one) == _exposure._exact(model, one)


def test_letters_that_are_no_tokens_of_their_own_are_ranked_by_list() -> None:
    """Pairs of digits are one token here, as in models of words."""
    pairs = {f"{one:02d}": 50 + one for one in range(100)}

    def encode_pairs(text: str) -> list[int]:
        found, at = [], 0
        while at < len(text):
            if text[at : at + 2] in pairs:
                found.append(pairs[text[at : at + 2]])
                at += 2
            else:
                found.append(CODES[text[at]])
                at += 1
        return found

    made = make_canaries("code {digits:2}", 1, source=source(insecure_seed=1))
    secret = pairs[made[0].secret]

    def model(rows: Any) -> Any:
        logits = np.zeros((*rows.shape, 150))
        logits[..., secret] = 5.0
        return logits

    wrapped = as_language_model(model, encode=encode_pairs, context=16)
    assert canary_exposure(wrapped, made).p_values.tolist() == [0.01]


@pytest.mark.parametrize("method", ["exact", "sampled", "distribution"])
def test_planted_secrets_are_found(method: str) -> None:
    made = canaries(20, copies=(1, 0))
    found = canary_exposure(by_heart(made.texts()), made, method=method, references=100, seed=1)
    assert found.p_value < RARE
    assert found.finding.leaks
    assert found.extrapolated == (method == "distribution")
    planted, control = found.groups[1], found.groups[0]
    assert (planted.copies, control.copies) == (1, 0)
    assert planted.mean_bits > 5 > control.mean_bits
    if method == "exact":
        assert planted.first_of_all == 20
        assert planted.most_bits == pytest.approx(math.log2(1000))
    if method == "sampled":
        assert planted.most_bits == pytest.approx(math.log2(101))
    assert control.p_value > RARE


@pytest.mark.parametrize("method", ["exact", "sampled"])
@pytest.mark.parametrize("target", [chance, blind])
def test_a_model_that_saw_no_canary_has_no_finding(method: str, target: Callable[[], Any]) -> None:
    """P(alarm) is at most 1e-6 by both statements of the page, for secrets drawn afresh here."""
    made = make_canaries(TEMPLATE, 12)
    found = canary_exposure(target(), made, method=method, references=60, confidence=1 - 2 * RARE)
    assert not found.finding.leaks
    assert found.p_value > RARE


def test_the_p_values_of_an_unseen_secret_are_at_most_uniform() -> None:
    """Over all secrets of a space, the share with p <= t is at most t, for every t."""
    one = canaries(1, template="{name} {digits:2}")[0]
    for model in (chance(9), blind()):
        p_values = [
            _exposure._exact(model, Canary(one.before, f"{number:02d}", "", one.alphabet, 1))
            for number in range(100)
        ]
        assert all(np.sort(p_values) >= np.arange(1, 101) / 100 - 1e-12)


def test_planted_fault_ties_that_count_for_the_attack_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that finds all secrets alike would seem to know each of them."""
    monkeypatch.setattr(_exposure, "_TIE", -1e-5)
    made = make_canaries(TEMPLATE, 12)
    found = canary_exposure(blind(), made, confidence=1 - 2 * RARE)
    assert found.finding.leaks


def test_extrapolated_bits_end_where_the_space_ends() -> None:
    made = canaries(5)
    found = canary_exposure(
        by_heart(made.texts(), strength=30.0), made, method="distribution", seed=1, references=100
    )
    assert float(found.bits.max()) <= math.log2(1000)
    assert canary_exposure(blind(), made, method="distribution").bits.tolist() == [0.0] * 5


def test_exposure_refuses_what_it_cannot_rank() -> None:
    one = Canary("the code is ", "aaaaaaaa", "", LETTERS[:26], 1)
    with pytest.raises(InvalidValue, match='method="sampled"'):
        _exposure._exact_by_list(blind(), one)
    with pytest.raises(InvalidValue, match="what as_language_model returns"):
        canary_exposure(None, canaries(1))  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="what make_canaries returns"):
        canary_exposure(blind(), [])  # type: ignore[arg-type]
    controls = canary_exposure(blind(), canaries(3, copies=(0,)))
    with pytest.raises(NotApplicable, match="nothing to find"):
        _ = controls.finding
    with pytest.raises(NotApplicable, match="planted 7 times"):
        controls.share_at(0.1, copies=7)


def test_single_canaries_stay_out_of_json() -> None:
    made = canaries(4)
    body = canary_exposure(blind(), made).to_json()
    assert json.loads(json.dumps(body)) == body
    assert "bits" not in body
    assert body["groups"][0]["canaries"] == 4
    assert body["attack"] == "canary_exposure"


# --- extraction ------------------------------------------------------------------------------


def test_a_model_that_knows_its_corpus_completes_it() -> None:
    members, twins = random_texts(60, 40, 1), random_texts(60, 40, 2)
    model = by_heart(members)
    found = extraction(model, members, twins, prefix=16, suffix=16)
    assert found.members.share == 1.0
    assert found.twins.share == 0.0
    assert found.finding.leaks
    sampled = extraction(model, members, twins, prefix=16, suffix=16, samples=2)
    assert sampled.members.share == 1.0
    assert sampled.twins.share == 0.0
    people = extraction(
        model,
        members,
        twins,
        prefix=16,
        suffix=16,
        member_owners=[at // 3 for at in range(60)],
        nonmember_owners=[100 + at // 2 for at in range(60)],
    )
    assert (people.members.trials, people.twins.trials) == (20, 30)
    assert "persons extracted" in people.finding.measure
    assert "20" in str(people)


def test_what_everybody_writes_is_not_extraction() -> None:
    """A licence that all texts share is completed for texts that were not used as well."""
    licence = "this program is free software: you can redistribute it."
    texts = [f"{one}{licence}" for one in random_texts(120, 4, 3)]
    found = extraction(
        by_heart(texts[:60]), texts[:60], texts[60:], prefix=16, suffix=24, confidence=1 - 2 * RARE
    )
    assert found.members.share == 1.0
    assert not found.finding.leaks


@pytest.mark.parametrize("samples", [None, 3])
def test_a_model_without_memory_extracts_nothing(samples: int | None) -> None:
    texts = random_texts(80, 20, 4)
    found = extraction(
        chance(1),
        texts[:40],
        texts[40:],
        prefix=8,
        suffix=1,
        samples=samples,
        chance=0.05,
        least_distinct=1,
        confidence=1 - 2 * RARE,
    )
    assert not found.finding.leaks


def test_planted_fault_extraction_without_twins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the twins the shared licence of the test above would be an alarm."""
    monkeypatch.setattr(
        _extraction, "gap", lambda first, second, confidence: _gap_alone(first, confidence)
    )
    licence = "this program is free software: you can redistribute it."
    texts = [f"{one}{licence}" for one in random_texts(120, 4, 3)]
    found = extraction(
        by_heart(texts[:60]), texts[:60], texts[60:], prefix=16, suffix=24, confidence=1 - 2 * RARE
    )
    assert found.finding.leaks


def _gap_alone(first: Any, confidence: float) -> Any:
    from discreet._confidence import gap

    return gap(first, np.zeros(len(first), dtype=bool), confidence=confidence)


def test_the_chance_of_a_suffix_is_the_product_of_those_of_its_tokens() -> None:
    model = chance(6)
    rows = np.array([encode(one) for one in random_texts(5, 12, 5)])
    logs = _extraction._log_chances(model, rows, 8, 1.0, None)
    for row, log in zip(rows, logs, strict=True):
        said = model.score([row.tolist()])[0].log_probabilities[7:].sum()
        assert log == pytest.approx(float(said), rel=1e-9)
    sharper = _extraction._log_chances(model, rows, 8, 0.5, None)
    assert not np.allclose(sharper, logs)
    # Of the two likeliest tokens one is drawn with half of the probability or more.
    best = rows.copy()
    for at in range(8, 12):
        best[:, at] = model.next_log_probabilities(best[:, :at]).argmax(axis=1)
    kept = _extraction._log_chances(model, best, 8, 1.0, 2)
    assert bool(np.all(kept >= 4 * math.log(0.5)))
    assert _extraction._log_chances(model, best, 8, 1.0, 1) == pytest.approx(np.zeros(5))


@pytest.mark.parametrize("start", [None, 3])
def test_suffixes_beyond_the_context_are_completed_step_by_step(start: int | None) -> None:
    """With room for all of it one pass is made, else one for each token: the same answers."""
    rows = np.array([encode(one) for one in random_texts(4, 20, 8)])
    opinions = chance(7)
    options = {} if start is None else {"start": start}
    wide, narrow = (wrap(opinions.ask, context=size, **options) for size in (64, 8))
    _, once = next(wide.log_probabilities_behind(rows, 3))
    for at in range(3, 20):
        np.testing.assert_allclose(
            once[:, at - 3], wide.next_log_probabilities(rows[:, :at]), rtol=1e-9
        )
    _, each = next(narrow.log_probabilities_behind(rows, 3))
    for at in range(3, 20):
        np.testing.assert_allclose(
            each[:, at - 3], narrow.next_log_probabilities(rows[:, :at]), rtol=1e-9
        )


def test_numbers_of_draws_are_exact_at_both_ends() -> None:
    assert draws_needed(np.array([0.0, -math.inf]), 0.5).tolist() == [1.0, math.inf]
    assert draws_needed(np.array([math.log(0.5)]), 0.5).tolist() == [1.0]
    tiny = draws_needed(np.array([-60.0]), 0.5)[0]
    assert tiny == pytest.approx(math.log(2) * math.exp(60), rel=1e-9)


def test_blank_suffixes_and_short_texts_are_left_out() -> None:
    texts = [*random_texts(5, 40, 6), "a" * 40, "short"]
    found = extraction(by_heart(texts), texts, random_texts(5, 40, 7), prefix=8, suffix=16)
    assert found.members.trials == 5
    assert found.left_out == 2


def test_extraction_refuses_mixed_sides() -> None:
    texts = random_texts(4, 40, 8)
    with pytest.raises(InvalidValue, match="1 texts that are members"):
        extraction(blind(), texts[:2], texts[1:])
    with pytest.raises(InvalidValue, match="1 people on both sides"):
        extraction(
            blind(), texts[:2], texts[2:], member_owners=["a", "b"], nonmember_owners=["b", "c"]
        )
    with pytest.raises(InvalidValue, match="of both kinds or of none"):
        extraction(blind(), texts[:2], texts[2:], member_owners=["a", "b"])
    with pytest.raises(InvalidValue, match="one for each of 2 texts"):
        extraction(
            blind(),
            texts[:2],
            texts[2:],
            prefix=4,
            suffix=8,
            member_owners=["a"],
            nonmember_owners=["b", "c"],
        )
    with pytest.raises(InvalidValue, match="a text of 64 tokens"):
        extraction(blind(), texts[:2], texts[2:])


# --- recitals --------------------------------------------------------------------------------


def test_a_recital_is_found_across_blanks() -> None:
    licence = "you can redistribute it and or modify it under the terms of the licence."
    model = by_heart([licence])
    found = recital(model, [licence[:8]], [licence.replace(" ", "\n  ")], public=["modify it"])
    assert found.passage == licence[8:]
    assert found.run == len(licence) - 8
    assert found.public_passage == "modify it"
    with pytest.raises(NotApplicable, match="no chance level"):
        _ = found.finding
    assert licence[10:] not in json.dumps(found.to_json()) + repr(found) + str(found)


def test_rows_of_one_letter_are_no_recital() -> None:
    stars = wrap(lambda rows: np.broadcast_to(np.eye(len(LETTERS))[0], (*rows.shape, len(LETTERS))))
    assert recital(stars, ["b"], ["a" * 300]).run == 0
    assert recital(stars, ["b"], ["a" * 300], least_distinct=1).run == 240


def test_passages_do_not_run_across_texts() -> None:
    assert longest_passage("abcdef", "abc\0def") == "abc"
    assert longest_passage("xx", "yy") == ""
    rng = np.random.default_rng(0)
    for _ in range(40):
        text = "".join(rng.choice(list("ab"), 12))
        corpus = "".join(rng.choice(list("ab"), 12))
        longest = max(
            (
                end - begin
                for begin in range(12)
                for end in range(begin, 13)
                if text[begin:end] in corpus
            ),
        )
        assert len(longest_passage(text, corpus)) == longest


def test_a_recital_needs_texts() -> None:
    with pytest.raises(InvalidValue, match="prompts"):
        recital(blind(), [], ["a"])
    with pytest.raises(InvalidValue, match="corpus"):
        recital(blind(), ["a"], [])
    mute = as_language_model(
        lambda rows: np.zeros((*rows.shape, len(LETTERS))), encode=encode, context=8
    )
    with pytest.raises(InvalidValue, match="a function from tokens to text"):
        recital(mute, ["a"], ["b"])


# --- membership ------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["loss", "zlib", "min_k", "min_k_plus", "reference"])
def test_members_of_a_model_that_knows_its_corpus_are_told(score: str) -> None:
    members, others = random_texts(80, 30, 1), random_texts(80, 30, 2)
    reference = chance(1) if score == "reference" else None
    found = text_membership(by_heart(members), members, others, score=score, reference=reference)
    assert found.auc > 0.95
    assert found.roc.exceeds(PureDP(0.1))
    assert found.metadata == {"score": score, "unit": "text"}


@pytest.mark.parametrize("score", ["loss", "zlib", "min_k", "min_k_plus", "reference"])
@pytest.mark.parametrize("target", [chance, blind])
def test_a_model_without_memory_tells_no_members(score: str, target: Callable[[], Any]) -> None:
    texts = random_texts(160, 12, 11)
    reference = chance(1) if score == "reference" else None
    found = text_membership(target(), texts[:80], texts[80:], score=score, reference=reference)
    # With a probability of 1e-6 at most, by the bounds of the curve.
    assert not found.roc.exceeds(PureDP(1e-9))


def test_planted_fault_a_score_that_grows_with_the_text_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sum in the place of a mean tells long texts from short ones, and no members."""
    model, sides = blind(), (random_texts(80, 24, 1), random_texts(80, 12, 2))
    assert not text_membership(model, *sides).roc.exceeds(PureDP(1e-9))
    monkeypatch.setattr(
        _text_membership, "_one", lambda text, said, *_: float(said.log_probabilities.sum())
    )
    assert text_membership(model, *sides).roc.exceeds(PureDP(1e-9))


def test_scores_are_what_their_names_say() -> None:
    model, text, other = chance(3), *random_texts(2, 25, 12)
    logs = model.score([encode(text)])[0].log_probabilities
    asked = {
        name: float(text_membership(model, [text], [other], score=name).scores[0])
        for name in ("loss", "zlib", "min_k", "min_k_plus")
    }
    assert asked["loss"] == pytest.approx(logs.mean(), rel=1e-7)
    assert asked["zlib"] == pytest.approx(
        logs.sum() / 8 / len(zlib.compress(text.encode())), rel=1e-6
    )
    assert asked["min_k"] == pytest.approx(np.sort(logs)[:5].mean(), rel=1e-7)
    said = model.score([encode(text)])[0]
    scaled = np.sort((logs - said.means) / said.deviations)
    assert asked["min_k_plus"] == pytest.approx(scaled[:5].mean(), rel=1e-7)


def test_people_have_the_mean_score_of_their_texts() -> None:
    members, others = random_texts(6, 20, 1), random_texts(4, 20, 2)
    model = by_heart(members)
    single = text_membership(model, members, others)
    people = text_membership(
        model,
        members,
        others,
        member_owners=["a", "b", "a", "b", "c", "c"],
        nonmember_owners=[1, 1, 2, 2],
    )
    assert people.metadata["unit"] == "person"
    assert people.member_scores.tolist() == pytest.approx(
        [single.scores[[0, 2]].mean(), single.scores[[1, 3]].mean(), single.scores[[4, 5]].mean()]
    )
    assert people.roc.nonmembers == 2


def test_membership_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(InvalidValue, match="1 texts that are members"):
        text_membership(blind(), ["ab", "cd"], ["ab"])
    with pytest.raises(InvalidValue, match="if and only if"):
        text_membership(blind(), ["ab"], ["cd"], reference=blind())
    with pytest.raises(InvalidValue, match="if and only if"):
        text_membership(blind(), ["ab"], ["cd"], score="reference")
    with pytest.raises(InvalidValue, match="texts of two tokens"):
        text_membership(blind(), ["a"], ["cd"])
    with pytest.raises(InvalidValue, match="members"):
        text_membership(blind(), [], ["cd"])


def test_the_registry_runs_them() -> None:
    members, others = random_texts(30, 30, 1), random_texts(30, 30, 2)
    inputs = {"language_model": by_heart(members), "members": members, "nonmembers": others}
    found = run_attack("extraction", inputs, prefix=10, suffix=10)
    assert found.finding is not None
    assert found.finding.leaks
    assert run_attack("text_membership", inputs, score="min_k").finding is not None
    assert {ATTACKS[name].family for name in ("canary_exposure", "recital")} == {"memorisation"}
