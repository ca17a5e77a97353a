"""Two processes train as one: same draws, same noise scale, same certificate (S21)."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from discreet.errors import NotApplicable
from discreet.learn.dpsgd import join, make_private
from learn.dpsgd import team_member as member
from learn.dpsgd.team_processes import run_members

pytestmark = pytest.mark.slow

MEMBER = Path(member.__file__)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What both members of one process group saw."""
    folder = tmp_path_factory.mktemp("team")
    found = run_members(MEMBER, folder)
    return SimpleNamespace(
        found=found,
        noise=[dict(np.load(folder / f"noise-{rank}.npz")) for rank in range(2)],
    )


def test_the_draw_of_the_leader_is_divided_without_loss(run):
    first, second = (found["primitives"] for found in run.found)
    assert [found["leads"] for found in run.found] == [True, False]
    assert sorted(first["share"] + second["share"]) == list(range(100, 111))
    assert len(first["share"]) - len(second["share"]) == 1
    assert (first["share of one"], second["share of one"]) == ([7], [])
    assert (first["share of nothing"], second["share of nothing"]) == ([], [])


def test_reading_ahead_is_refused_on_every_member_instead_of_waiting_for_ever(run):
    for found in run.found:
        assert "workers=0" in found["primitives"]["reading ahead"]


def test_sums_are_the_same_everywhere_and_keep_their_types(run):
    for found in run.found:
        assert found["primitives"]["sums"] == [[[3.0] * 3] * 2, 1.0, [0, 2, 4, 6]]


CASES = list(member.cases())


def alone(name):
    """The same plan in one process, with the leader's draws."""
    the_plan, most = member.cases()[name]
    model = member.small_model(seed=100)
    private, _ = member.trained(the_plan, model, max_physical=most)
    private.detach()
    return member.flat(model), private


@pytest.mark.parametrize("name", CASES)
def test_two_processes_give_what_one_gives_with_the_same_draws(run, name):
    expected, private = alone(name)
    cases = [found["training"][name] for found in run.found]
    for case in cases:
        # The noise is 1e-9 of the clip norm in every step, and training amplifies it a little;
        # one example more or less would change the model by 1e-2.
        assert np.allclose(case["model"], expected, rtol=0.0, atol=1e-5)
        assert np.allclose(case["clip norms"], private.clip_norms, rtol=1e-6)
    started = member.flat(member.small_model(seed=100))
    assert np.abs(expected - started).max() > 1e-3, "training moved the model"


@pytest.mark.parametrize("name", CASES)
def test_all_members_take_all_steps_and_end_with_the_same_bits(run, name):
    cases = [found["training"][name] for found in run.found]
    steps = 30 if name == "mostly empty" else 12
    assert [case["steps"] for case in cases] == [steps, steps]
    assert cases[0]["model"] == cases[1]["model"]
    assert [case["agreed"] for case in cases] == [True, True]
    assert [case["agreed after a change"] for case in cases] == [False, False]


def test_members_may_need_different_numbers_of_physical_batches(run):
    rounds = [found["training"]["physical"]["rounds"] for found in run.found]
    assert min(rounds) > 12
    assert rounds[0] >= rounds[1]


# The planned standard deviation of the noise in the normalised gradient: 2.0 * 0.5 / 6.
PLANNED = 2.0 * 0.5 / 6.0


def far_from_planned(noise):
    """How many standard errors the variance of the noise is away from the plan."""
    values = np.asarray(noise, dtype=np.float64).reshape(-1) / PLANNED
    return (np.mean(values**2) - 1.0) / np.sqrt(2.0 / values.size)


def test_after_the_reduction_the_noise_has_exactly_the_planned_scale(run):
    # 90,900 normals: 7 standard errors are 3.3 %, a false alarm has probability 3e-12.
    assert abs(far_from_planned(run.noise[0]["team"])) < 7.0
    assert np.array_equal(run.noise[0]["team"], run.noise[1]["team"])


def test_noise_is_fresh_in_every_step_and_has_mean_zero(run):
    steps = run.noise[0]["team"] / PLANNED
    size = steps.shape[1]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        correlation = float((steps[one] * steps[other]).mean())
        assert abs(correlation) * np.sqrt(size) < 7.0
    assert abs(float(steps.mean())) * np.sqrt(steps.size) < 7.0


def test_the_scale_test_rejects_undivided_and_unsummed_noise(run):
    assert far_from_planned(run.noise[0]["undivided"]) > 100.0  # twice the variance
    assert far_from_planned(run.noise[0]["unsummed"]) < -50.0  # half of it
    # What each member adds by itself is independent of what the other adds.
    one, other = (noise["unsummed"].reshape(-1) / PLANNED for noise in run.noise)
    assert abs(float((one * other).mean())) * np.sqrt(one.size) / 0.5 < 7.0


def test_all_members_hold_the_certificate_of_one_process(run):
    model = nn.Linear(100, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = make_private(model, optimizer, member.noisy_plan(), isolation="vouched")
    expected = json.loads(json.dumps(private.certificate().to_json()))
    private.detach()
    for found in run.found:
        certificate = json.loads(found["certificate"])
        assert certificate["run"].pop("steps_taken") == 3
        assert certificate.pop("model_digest") != expected["model_digest"]
        assert certificate.pop("hash") != expected["hash"]
        expected["run"].pop("steps_taken", None)
        assert certificate == {name: expected[name] for name in certificate}
        assert certificate["randomness"]["randomness"] == "operating system"


def test_disagreement_is_refused_on_every_member(run):
    for found in run.found:
        assert found["refusals"]["plan"] == "plan"
        assert found["refusals"]["model"] == "model"
        for wrapper in ("DistributedDataParallel", "DataParallel"):
            assert "bare module" in found["refusals"][wrapper]
        for name in ("sharded", "sharded, join"):
            assert "fully_shard" in found["refusals"][name]
            assert "bare module" in found["refusals"][name]


def test_without_a_process_group_there_is_no_team():
    with pytest.raises(NotApplicable, match="init_process_group"):
        join(nn.Linear(2, 2), member.plan())
