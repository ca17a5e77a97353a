"""Canaries go through the real run, leave the others alone, and are scored as theory says."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import TensorDataset

from discreet.audit import Inclusion, audit_one_run, audit_one_run_curve
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd import Flat, Phase, Plan, Quantile, Trainer
from discreet.learn.dpsgd._clipping import ROUNDING_MARGIN
from discreet.learn.dpsgd.canaries import (
    GradientCanaries,
    mislabelled,
    noise_examples,
    train_with_gradient_canaries,
    train_with_input_canaries,
)
from discreet.learn.dpsgd.canaries._canaries import gradient_scores
from discreet.randomness import source
from learn.dpsgd.made_up_runs import data, each, network

CANARIES = 40
COINS = np.random.default_rng(1).random(CANARIES) < 0.5


def plan_of(**changes):
    base = {
        "examples": 100,
        "expected_batch_size": 50,
        "steps": 3,
        "clip_norm": 0.5,
        "noise_multiplier": 1e-6,
        "delta": 1e-5,
    }
    return Plan(**{**base, **changes})


def descend(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def run_of(plan, *, included=COINS, model=None, **changes):
    return train_with_gradient_canaries(
        model or network(),
        data(60),
        plan,
        included=included,
        loss=each,
        optimizer=descend,
        source=source(insecure_seed=3),
        **changes,
    )


FULL = {"sampler": "full", "expected_batch_size": 100}


@pytest.mark.parametrize("clipping", ["flat", "automatic", "per_layer"])
def test_every_included_canary_adds_exactly_the_clip_norm_to_its_coordinate(clipping) -> None:
    plan = plan_of(**FULL, clipping=clipping)
    run = run_of(plan)
    share = 1 / math.sqrt(3) if clipping == "per_layer" else 1.0
    seen = run.observed * 100 / (plan.clip_norm * share)
    assert seen.shape == (3, CANARIES)
    np.testing.assert_allclose(seen, np.broadcast_to(COINS, seen.shape), atol=1e-4)
    assert run.trained.certificate.run["isolation"] == "checked"
    assert run.trained.certificate.epsilon == plan.epsilon()


def test_the_bound_of_the_clip_norm_is_not_passed() -> None:
    plan = plan_of(**FULL, noise_multiplier=1e-9)
    seen = run_of(plan).observed[:, COINS] * 100 / plan.clip_norm
    assert (seen <= 1.0).all()
    assert (seen >= 1.0 - 2 * ROUNDING_MARGIN).all()


def test_the_other_examples_do_not_notice() -> None:
    plan = plan_of(**FULL)
    with_canaries = network(seed=2)
    run_of(plan, model=with_canaries)
    alone = network(seed=2)
    Trainer(alone, plan, optimizer=descend, loss=each).fit(data(60), progress=False)
    for ours, theirs in zip(with_canaries.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("max_physical", [None, 7])
def test_canaries_are_drawn_like_everybody(max_physical) -> None:
    plan = plan_of(steps=60, expected_batch_size=30)
    run = run_of(plan, max_physical=max_physical)
    drawn = np.rint(run.observed * 30 / plan.clip_norm)
    assert set(np.unique(drawn)) == {0.0, 1.0}
    assert not drawn[:, ~COINS].any()
    trials = 60 * int(COINS.sum())
    assert stats.binomtest(int(drawn.sum()), trials, 0.3).pvalue > 1e-9
    # Without noise to speak of, every included canary is certain.
    assert run.scores[COINS].min() > 1e3 > 0 > run.scores[~COINS].max()


def test_under_replace_the_excluded_pull_the_other_way() -> None:
    plan = plan_of(examples=100, expected_batch_size=100, sampler="full", relation="replace")
    seen = run_of(plan).observed * 100 / plan.clip_norm
    np.testing.assert_allclose(seen, np.broadcast_to(np.where(COINS, 1, -1), seen.shape), atol=1e-4)


# --- scores ----------------------------------------------------------------------------------


def density(seen, centre, stddev):
    return stats.norm.pdf(seen, loc=centre, scale=stddev)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("sampler", ["poisson", "full", "without_replacement", "shuffled"])
def test_scores_are_the_likelihood_ratio_summed_over_all_ways_to_take_part(
    sampler, relation
) -> None:
    if (sampler, relation) == ("without_replacement", "add_remove"):
        with pytest.raises(ValueError, match="replace"):
            plan_of(sampler=sampler, relation=relation)
        return
    sizes = {"full": 12, "shuffled": 4}
    plan = plan_of(
        examples=12,
        expected_batch_size=sizes.get(sampler, 3),
        steps=4,
        sampler=sampler,
        relation=relation,
        noise_multiplier=0.8,
    )
    size, stddev = plan.expected_batch_size, 0.8
    seen = np.random.default_rng(4).normal(size=(4, 3))

    def weight(ways):
        """The probability of taking part in exactly these steps."""
        if sampler == "full":
            return float(all(ways))
        if sampler == "shuffled":  # three batches an epoch; the second epoch ends after one
            first, second = ways[:3], ways[3:]
            return (sum(first) == 1) / 3 * (1 / 3 if sum(second) else 2 / 3)
        return float(np.prod([size / 12 if way else 1 - size / 12 for way in ways]))

    def likelihood(sign):
        return sum(
            weight(ways) * np.prod(density(seen, sign * np.array(ways)[:, None], stddev), axis=0)
            for ways in itertools.product((0, 1), repeat=4)
        )

    nothing = np.prod(density(seen, 0.0, stddev), axis=0)
    other = likelihood(-1) if relation == "replace" else nothing
    expected = np.log(likelihood(1)) - np.log(other)
    found = gradient_scores(seen * plan.clip_norm / size, plan)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_scores_follow_phases_and_groups() -> None:
    phases = [Phase(2, 10, noise_factor=0.5), Phase(1, 20)]
    plan = plan_of(
        expected_batch_size=None, steps=None, phases=phases, noise_multiplier=2.0, examples=40
    )
    seen = np.random.default_rng(5).normal(size=(3, 6))
    expected = np.zeros(6)
    for row, (size, stddev) in zip(seen, ((10, 1.0), (10, 1.0), (20, 2.0)), strict=True):
        stddev *= 2.0  # four groups share the clip norm
        rate = size / 40
        expected += np.log(1 - rate + rate * np.exp((2 * row - 1) / (2 * stddev**2)))
    gradients = seen * (plan.clip_norm / 2) / np.array([[10], [10], [20]])
    np.testing.assert_allclose(gradient_scores(gradients, plan, groups=4), expected, rtol=1e-9)


def test_scores_are_normal_as_theory_says() -> None:
    """Full batches: the score is N(+-mu^2/2, mu^2) with mu = sqrt(steps) / noise multiplier."""
    plan = plan_of(**FULL, steps=4, noise_multiplier=2.0)
    coins = np.random.default_rng(6).random(2000) < 0.5
    run = run_of(plan, included=coins)
    mu = math.sqrt(4) / 2.0
    for group, sign in ((run.scores[coins], 1), (run.scores[~coins], -1)):
        assert stats.kstest((group - sign * mu**2 / 2) / mu, "norm").pvalue > 1e-9
    assert stats.kstest((run.scores[coins] + mu**2 / 2) / mu, "norm").pvalue < 1e-9


# --- audits of real runs ---------------------------------------------------------------------


def audited(plan, claim, *, canaries=600, seed=1):
    coins = Inclusion(canaries, guesses=(60, 60), source=source(insecure_seed=seed))
    run = run_of(plan, included=coins.included)
    return audit_one_run(coins, run.scores, loss=claim, delta=1e-5)


CLAIM = {"examples": 400, "expected_batch_size": 200, "steps": 8, "epsilon": 1.5}


def claimed_plan(**changes):
    return plan_of(**{**CLAIM, "noise_multiplier": None, **changes})


def test_a_right_run_is_consistent() -> None:
    plan = claimed_plan()
    audit = audited(plan, plan.loss)
    assert audit.verdict == "consistent"
    assert audit.ceiling > audit.claimed_epsilon > audit.epsilon_lower


def test_a_run_with_a_quarter_of_the_noise_is_found_out() -> None:
    plan = claimed_plan()
    weak = claimed_plan(epsilon=None, noise_multiplier=plan.noise_multiplier / 4)
    assert audited(weak, plan.loss).violated


def test_a_run_without_clipping_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = claimed_plan()
    monkeypatch.setattr(
        Flat,
        "weights",
        lambda self, norms, *, clip_norm, factor=1.0: torch.full_like(norms, factor),
    )
    audit = audited(plan, plan.loss)
    assert audit.violated
    assert audit.evidence["correct"] >= 115, "of 120 guesses"


def test_any_loop_can_be_watched() -> None:
    """A loop of one's own that forgets the noise: no private optimizer anywhere."""
    plan = claimed_plan(sampler="full", expected_batch_size=400)
    coins = Inclusion(300, guesses=(30, 30), source=source(insecure_seed=5))
    canaries = GradientCanaries(network(), data(60), plan, included=coins.included, loss=each)
    optimizer = descend(canaries.model.parameters())
    canaries.watch(optimizer)
    for _ in range(plan.steps):
        losses = canaries.losses(canaries.model, canaries.dataset.tensors)
        (losses.sum() / 400).backward()
        optimizer.step()
        optimizer.zero_grad()
    audit = audit_one_run_curve(coins, canaries.scores(), loss=plan.loss, delta=1e-5)
    assert audit.violated
    assert audit.evidence["correct"] == 60


# --- input canaries --------------------------------------------------------------------------


def auc(scores, included):
    ranks = stats.rankdata(scores)[included].sum()
    inside, outside = included.sum(), (~included).sum()
    return (ranks - inside * (inside + 1) / 2) / (inside * outside)


@pytest.mark.parametrize("looks", [1, 4])
def test_input_canaries_show_a_run_that_remembers(looks) -> None:
    """Far less noise than any guarantee needs: noise images with random labels are learnt."""
    odd = noise_examples(CANARIES, (120,), classes=3, source=source(insecure_seed=7))
    assert set(odd.tensors[0].unique().tolist()) == {-1.0, 1.0}
    plan = plan_of(examples=80, expected_batch_size=80, sampler="full", steps=60, clip_norm=1.0)
    torch.manual_seed(3)
    run = train_with_input_canaries(
        nn.Linear(120, 3),
        data(60, features=120),
        plan,
        canaries=odd,
        included=COINS,
        loss=each,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=5.0),
        looks=looks,
    )
    assert run.form == "input"
    assert run.observed is None
    assert auc(run.scores, COINS) > 0.75
    assert auc(run.scores, ~COINS) < 0.25


def test_the_score_is_how_far_the_loss_fell() -> None:
    odd = mislabelled(*data(CANARIES, seed=9).tensors, classes=3)
    model = network(seed=4)

    def losses():
        with torch.no_grad():
            return each(model(odd.tensors[0]), odd.tensors[1]).double().numpy()

    before = losses()
    run = train_with_input_canaries(
        model,
        data(60),
        plan_of(noise_multiplier=1.0),
        canaries=odd,
        included=COINS,
        loss=each,
        optimizer=descend,
    )
    np.testing.assert_allclose(run.scores, before - losses(), atol=1e-6)


def test_mislabelled_examples_have_every_wrong_label_equally_often() -> None:
    inputs, targets = torch.zeros(6000, 2), torch.arange(6000) % 3
    wrong = mislabelled(inputs, targets, classes=3, source=source(insecure_seed=1)).tensors[1]
    shifts = np.bincount(((wrong - targets) % 3).numpy(), minlength=3)
    assert shifts[0] == 0
    assert stats.binomtest(int(shifts[1]), 6000).pvalue > 1e-9


# --- refusals --------------------------------------------------------------------------------


def test_what_cannot_be_scored_is_refused_before_the_run() -> None:
    with pytest.raises(NotApplicable, match="fixed clip norm"):
        run_of(plan_of(clipping=Quantile()))
    with pytest.raises(InvalidValue, match="included"):
        run_of(plan_of(), included=np.ones(4))
    with pytest.raises(InvalidValue, match="TensorDataset"):
        GradientCanaries(network(), [1, 2], plan_of(), included=COINS, loss=each)
    with pytest.raises(InvalidValue, match="one row for each of the 3 steps"):
        gradient_scores(np.zeros((2, 5)), plan_of())
    common = {"included": COINS, "loss": each, "optimizer": descend}
    with pytest.raises(InvalidValue, match="one for each coin"):
        train_with_input_canaries(network(), data(60), plan_of(), canaries=data(3), **common)
    with pytest.raises(InvalidValue, match="looks"):
        train_with_input_canaries(
            network(), data(60), plan_of(), canaries=data(CANARIES), looks=9, **common
        )
    replace = plan_of(sampler="full", expected_batch_size=100, relation="replace")
    with pytest.raises(NotApplicable, match="add_remove"):
        train_with_input_canaries(network(), data(60), replace, canaries=data(CANARIES), **common)


def test_a_marked_model_is_the_model_with_one_more_output() -> None:
    canaries = GradientCanaries(network(), data(60), plan_of(), included=COINS, loss=each)
    assert isinstance(canaries.dataset, TensorDataset)
    assert len(canaries.dataset) == 60 + COINS.sum()
    with torch.no_grad():
        canaries.model.coordinates.weight.copy_(torch.arange(CANARIES + 1.0).unsqueeze(1))
        inputs = torch.randn(3, 6)
        outputs, coordinates = canaries.model(inputs, torch.tensor([0, 2, -5]))
    torch.testing.assert_close(outputs, canaries.model.model(inputs))
    assert coordinates.tolist() == [0.0, 2.0, -5.0]
