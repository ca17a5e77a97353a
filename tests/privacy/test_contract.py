"""The contract of an atom: one class is enough, and no override is looser than its default."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import final

import numpy as np
import pytest

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.privacy import (
    ZCDP,
    Atom,
    Cells,
    Composition,
    Filter,
    Gaussian,
    Loss,
    Pair,
    PureDP,
    RandomizedResponse,
    Relation,
    from_json,
    to_json,
)
from discreet.privacy._loss import largest_loss
from discreet.privacy._pair import FINE, largest_claim, orient, profile
from discreet.privacy._renyi import bounded_rho, curve, curve_pair, pair_divergence
from privacy.readings import EXPRESSIONS, make

# --- atoms that nobody here knew of ---------------------------------------------------------


@final
@dataclass(frozen=True, repr=False)
class UniformNoise(Atom):
    """Uniform noise of a width: neighbours overlap, or everything is seen."""

    width: float
    sensitivity: float = 1.0
    relation: Relation = Relation.ADD_REMOVE

    def check(self):
        width = _validate.real("width", self.width, above=0)
        reach = _validate.real("sensitivity", self.sensitivity, above=0, at_most=width)
        self._set(width=width, sensitivity=reach)

    def pair(self, resolution):
        seen = self.sensitivity / self.width
        both = np.array([1.0 - seen])
        cells = Cells.points(both, both, np.zeros(1), only_p=seen, only_q=seen)
        return Pair.exact(cells, reflected=True)


@final
@dataclass(frozen=True, repr=False)
class Dice(Atom):
    """A biased coin against a fair one: given by its pair alone, and not symmetric."""

    bias: Fraction
    relation: Relation = Relation.ADD_REMOVE

    def check(self):
        bias = _validate.fraction("bias", self.bias, above=0, below=1)
        self._set(bias=bias)

    def pair(self, resolution):
        p = np.array([float(self.bias), 1.0 - float(self.bias)])
        q = np.array([0.5, 0.5])
        return Pair.exact(Cells.points(p, q, np.log(p / q)))


@final
@dataclass(frozen=True, repr=False)
class Concentrated(Atom):
    """Only a Renyi curve."""

    slope: float
    relation: Relation = Relation.ADD_REMOVE

    def check(self):
        self._set(slope=_validate.real("slope", self.slope, above=0))

    def renyi(self, orders):
        return orders * self.slope


def test_an_atom_with_a_pair_alone_is_read_by_everything():
    step = UniformNoise(100.0)
    plan = 20 * step
    failing = 1.0 - 0.99**20
    bounds = plan.delta_bounds(epsilon=0.5)
    assert bounds.upper == pytest.approx(failing, rel=1e-12)
    assert plan.epsilon(delta=0.1) == math.inf
    assert plan.epsilon(delta=failing * 1.001) == 0.0
    assert step.poisson(rate=0.1).delta(epsilon=0) == pytest.approx(1e-3)
    assert math.isinf(step.rdp([2.0])[0])
    assert step.claim() is None
    with pytest.raises(NotApplicable):
        step.zcdp()


def test_a_pair_that_is_not_symmetric_is_read_in_both_directions():
    coin = Dice(Fraction(9, 10))
    worst = max(0.9 - math.e**0.3 * 0.5, 0.5 - math.e**0.3 * 0.1)
    bounds = coin.delta_bounds(epsilon=0.3)
    assert bounds.lower <= worst <= bounds.upper <= worst * (1 + 1e-9)
    assert float(coin.claim()[0]) == pytest.approx(math.log(5))
    assert coin.epsilon(delta=0) == pytest.approx(math.log(5))
    forward = math.log(0.9**2 / 0.5 + 0.1**2 / 0.5)
    back = math.log(0.25 / 0.9 + 0.25 / 0.1)
    assert coin.rdp([2.0])[0] == pytest.approx(max(forward, back), rel=1e-9)
    rho = coin.zcdp()
    assert all(coin.rdp([a])[0] <= rho * a for a in (1.1, 2.0, 5.0, 50.0))
    budget = Filter(epsilon=8, delta=1e-6, kind="basic+zcdp")
    budget.charge(coin)
    assert budget.spent["basic"] == coin.claim()[0]
    assert coin.group(2).epsilon(delta=0) == pytest.approx(2 * math.log(5))


def test_an_atom_with_a_curve_alone_is_read_like_a_known_one():
    ours, known = 5 * Concentrated(0.02), 5 * ZCDP(0.02)
    assert ours.epsilon_bounds(delta=1e-6) == known.epsilon_bounds(delta=1e-6)
    assert ours.rdp([3.0])[0] == known.rdp([3.0])[0]
    assert (ours + Gaussian(3.0)).delta(epsilon=1) == (known + Gaussian(3.0)).delta(epsilon=1)
    with pytest.raises(NotApplicable, match="does not determine what Poisson sampling does"):
        Concentrated(0.02).poisson(rate=0.1)


@pytest.mark.parametrize(
    "loss", [UniformNoise(3.0), Dice("1/3"), 2 * Concentrated(0.1) + UniformNoise(9.0, 2.0)]
)
def test_a_foreign_atom_is_written_and_read(loss):
    assert from_json(to_json(loss)) == loss
    assert str(Fraction(1, 3)) in repr(Dice("1/3"))


def test_whatever_is_built_was_checked():
    for build in (
        lambda: UniformNoise(-1.0),
        lambda: UniformNoise(1.0, 2.0),
        lambda: Dice(2),
        lambda: Dice("0.5", relation="nobody"),
        lambda: Composition(((PureDP(1), 1),)),
    ):
        with pytest.raises(InvalidValue):
            build()
    document = to_json(UniformNoise(3.0))
    document["loss"]["width"] = -3.0
    with pytest.raises(SchemaError, match="width"):
        from_json(document)


@pytest.mark.parametrize("name", ["Gaussian", "Shuffled"])
def test_a_kind_of_the_package_cannot_be_replaced(name):
    with pytest.raises(TypeError, match="choose another name"):
        type(name, (Loss,), {})


def test_kinds_are_public_and_read_from_json_before_they_are_used():
    program = (
        "import json, sys, discreet.privacy as p\n"
        "assert 'discreet.privacy._shuffling' not in sys.modules\n"
        "assert 'discreet.privacy.theorems' not in sys.modules\n"
        "print(repr(p.from_json(json.loads(sys.argv[1]))))\n"
        "from discreet.privacy._loss import KINDS\n"
        "print(set(KINDS) - set(p.__all__))\n"
    )
    loss = RandomizedResponse(1.0).shuffled(population=100)
    command = [sys.executable, "-c", program, json.dumps(to_json(loss))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [repr(loss), "set()"]


# --- overrides against their defaults ---------------------------------------------------------

ORDERS = np.array([1.2, 2.0, 5.0, 20.0])
STEPS = [text for text in EXPRESSIONS if make(text).has_own_pair]
STEPS = [text for text in STEPS if not isinstance(make(text), Composition)]
# The ratio of this pair is beyond the floats, so its curve is infinite.
STEPS = [text for text in STEPS if "5e-324" not in text]
STEPS = [text for text in STEPS if not (text.startswith("(2 *") and "replacement" in text)]


def overrides(loss: Loss, name: str) -> bool:
    return getattr(type(loss), name) is not getattr(Loss, name)


def seen(loss: Loss, *, swapped: bool):
    return orient(loss.pair(FINE), swapped=swapped)[1]


@pytest.mark.parametrize("text", STEPS)
def test_a_pair_is_reflected_exactly_where_its_directions_agree(text):
    loss = make(text)
    pair = loss.pair(FINE)
    points = np.array([0.0, 0.05, 0.3, 1.0])
    ways = [profile(orient(pair, swapped=swapped)[1], points) for swapped in (False, True)]
    agree = np.allclose(*ways, rtol=2e-3, atol=1e-12)
    assert agree == pair.reflected or bool(np.all(ways[0] < 1e-12))


# The readings of a sampled pair of known order are those of both orders, which ledgers hold. The
# curve of shuffled reports has fewer cells than its pair: 0.3 % looser, and three times as fast.
BY_OTHER_MEANS = ("oriented=True).p", ".shuffled(")


@pytest.mark.parametrize(
    "text", [text for text in STEPS if not any(part in text for part in BY_OTHER_MEANS)]
)
def test_no_override_is_looser_than_its_default_or_unsound(text):
    loss = make(text)
    try:
        ours = curve(loss, ORDERS)
    except NotApplicable:
        ours = np.full(len(ORDERS), math.inf)
    moments = pair_divergence(ORDERS, loss.pair)
    if overrides(loss, "renyi"):
        assert np.all(ours <= moments * (1 + 1e-6) + 1e-12) or not loss.tight
    claim, default = loss.claim(), largest_claim(loss.pair(FINE))
    if claim is not None and claim[1] == 0 and default is not None:
        assert float(claim[0]) <= float(default[0]) * (1 + 1e-9) + 1e-9
        # A claim is above every loss of a pair that lies below the true one.
        for below in loss.pair(FINE).below:
            assert float(claim[0]) * (1 + 1e-9) >= float(below.lower().loss.max())
    try:
        rho = loss.zcdp()
    except NotApplicable:
        return
    assert np.all(ours <= rho * ORDERS * (1 + 1e-9))
    if math.isfinite(largest_loss(loss)):
        # A closed form may be a little above the scan, which is slow.
        assert rho <= bounded_rho(loss, largest_loss(loss)) * 1.05


@pytest.mark.parametrize("text", ["Laplace(1.3)", "Gaussian(1.1)", "RandomizedResponse(1.0)"])
def test_the_pair_of_a_curve_dominates_the_pair_itself(text):
    loss = make(text)
    hull = curve_pair([(loss, 1)]).above.upper()
    points = np.array([0.0, 0.3, 1.0, 2.0])
    assert np.all(profile(hull, points) >= profile(seen(loss, swapped=False), points) - 1e-9)
