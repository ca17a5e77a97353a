"""A whole run by the trainer in two processes: one charge, one directory, one model (S21)."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from discreet.certificate import Certificate
from discreet.learn import dpsgd
from discreet.learn.dpsgd._certificate import problems
from learn.dpsgd import team_member as member
from learn.dpsgd import team_trainer as script
from learn.dpsgd.team_processes import run_members

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("team")


@pytest.fixture(scope="module")
def found(folder):
    """What both members saw."""
    return run_members(Path(script.__file__), folder)


def test_two_processes_give_what_one_gives_with_the_same_draws(found):
    model = member.small_model(seed=100)
    started = member.flat(model)
    script.trainer(model, member.plan()).fit(member.examples())
    expected = member.flat(model)
    assert np.abs(expected - started).max() > 1e-2, "training moved the model"
    for one in found:
        # The noise is 1e-9 of the clip norm; one example more or less is seen at 1e-2.
        assert np.allclose(one["quiet"], expected, rtol=0.0, atol=1e-5)


def test_the_run_is_charged_once_by_the_leader_and_all_hold_its_certificate(found):
    first, second = (one["whole"] for one in found)
    assert (first["charges"], second["charges"]) == (["completed"], None)
    assert first["certificate"] == second["certificate"]
    assert first["certificate"]["receipt"]["entry"]["dataset"] == "people"
    assert first["certificate"]["run"]["steps_taken"] == 12
    assert first["model"] == second["model"]
    assert first["history"] == second["history"]
    assert [row["step"] for row in first["history"]] == list(range(1, 13))


def without_looks(run):
    """The facts of a run without the steps that were looked at, and these steps."""
    apart = dict(run["examples_apart"])
    looks = apart.pop("looked_at_in_steps")
    return {**run, "examples_apart": apart}, looks


def test_the_certificate_is_that_of_one_process(found):
    alone = script.trainer(member.small_model(seed=100), script.noisy())
    expected = json.loads(json.dumps(alone.fit(member.examples()).certificate.to_json()))
    for one in found:
        certificate = dict(one["whole"]["certificate"])
        assert problems(Certificate.from_json(certificate)) == []
        # One was charged, and its noise was drawn in parts.
        for differs in ("receipt", "model_digest", "randomness", "hash"):
            certificate.pop(differs)
        wanted = {k: v for k, v in expected.items() if k in certificate}
        # Besides the first step, the looks fall on random steps of each run.
        certificate["run"], looks = without_looks(certificate["run"])
        wanted["run"], _ = without_looks(wanted["run"])
        assert looks[0] == 0
        assert looks == sorted(set(looks) & set(range(12)))
        assert certificate == wanted


def test_only_the_leader_writes_files(found, folder):
    assert found[1]["whole"]["files"] == []
    assert "state.safetensors" in found[0]["whole"]["files"]
    model = member.small_model(seed=3)
    certificate = dpsgd.load(folder / "run of 0", model)
    assert member.flat(model).tolist() == found[0]["whole"]["model"]
    assert json.loads(json.dumps(certificate.to_json())) == found[0]["whole"]["certificate"]


def test_a_run_that_broke_off_is_resumed_by_all_members(found):
    first, second = (one["broken"] for one in found)
    for one in (first, second):
        assert one["stopped"]
        assert one["steps"] == list(range(12)), "no step is taken twice or left out"
    assert (first["between"], first["charges"]) == (["open"], ["completed"])
    assert first["model"] == second["model"]
    assert first["certificate"] == second["certificate"]


def test_one_process_may_resume_what_two_began(found, folder):
    assert [one["left"] for one in found] == [True, True]
    with script.stopping(99) as steps:
        trained = script.trainer(member.small_model(seed=5), script.noisy()).fit(
            member.examples(), checkpoint=folder / "left 0", checkpoint_every=2
        )
    assert steps == list(range(7, 12))
    assert trained.certificate.run["steps_taken"] == 12


REFUSED = {
    "length": ("InvalidValue: dataset", "InvalidValue: dataset"),
    "workers": ("PlanViolation: member 1 .* workers", "InvalidValue: workers"),
    "no examples": ("PlanViolation: member 1 .* dataset", "InvalidValue: dataset"),
    "optimizer": ("InvalidValue: optimizer", "InvalidValue: optimizer"),
    "seed": ("InvalidValue: source", "InvalidValue: source"),
    "vouched": ("InvalidValue: isolation", "InvalidValue: isolation"),
    "mixing": ("PlanViolation: .*BatchNorm1d", "PlanViolation: .*BatchNorm1d"),
    "budget": ("BudgetExceeded", "PlanViolation: member 0 .* BudgetExceeded"),
    "ledger of another": ("InvalidValue: ledger", "InvalidValue: ledger"),
    "checkpoint": ("InvalidValue: checkpoint", "InvalidValue: checkpoint"),
    "not joined": ("PlanViolation: .*join", "PlanViolation: .*join"),
    "own loop": ("PlanViolation: .*join", "PlanViolation: .*join"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_one_member_refuses_all_refuse_and_nothing_is_charged(found, case):
    for one, words in zip(found, REFUSED[case], strict=True):
        assert re.match(words, one["refusals"][case], flags=re.DOTALL)
    assert found[0]["refusals"]["charges"] == [[], []]


def test_the_dataset_length_is_not_shown_where_it_differs(found):
    for one in found:
        assert "39" not in one["refusals"]["length"]
        assert "40" not in one["refusals"]["length"]
