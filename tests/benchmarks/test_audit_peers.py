"""Outputs of other libraries are audited against their claim; every fault has a right twin."""

import numpy as np
import pytest

from audit_peers import CASES, PACKAGES, Case, audit, table, targets

DRAW = np.random.default_rng(1)


def outputs(scale: float, count: int = 4000) -> np.ndarray:
    return np.stack([DRAW.laplace(centre, scale, count).round(2) for centre in (0, 1)])


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, "consistent"), (0.4, "violated")])
def test_outputs_that_were_drawn_elsewhere_are_judged(scale: float, verdict: str) -> None:
    assert audit(Case("somebody", True, "noise"), outputs(scale), None).verdict == verdict


def test_the_claim_of_opacus_is_what_its_accountant_recorded() -> None:
    given = (DRAW.normal(size=(2, 4000)) + np.array([[1.0], [0.0]])).round(2)
    case = Case("opacus", True, "noise", None, 0.05)
    assert audit(case, given, [(1.0, 1.0, 1)]).verdict == "consistent"
    assert audit(case, given, [(4.0, 1.0, 1)]).verdict == "violated"


def test_every_library_has_faults_and_right_uses() -> None:
    assert {(case.peer, case.broken) for case in CASES.values()} == {
        (peer, broken) for peer in PACKAGES for broken in (True, False)
    }


def test_a_wrong_verdict_misses_a_target_and_is_shown() -> None:
    names = [name for name, case in CASES.items() if case.peer == "diffprivlib"]
    sound = audit(CASES[names[0]], outputs(1.0), None).to_json()
    entries = [{"name": name, "audit": sound} for name in names]
    record = {"parts": {"diffprivlib": {"found": entries}}}
    assert [one["met"] for one in targets(record)] == [not CASES[name].broken for name in names]
    assert table(record).count("| consistent |") == len(names)
    assert "Not measured" in table({"parts": {}})
