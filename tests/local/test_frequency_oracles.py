"""S27: frequency oracles: whole channels, unbiased counts, variances, the choice of a method."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.errors import InvalidValue, MechanismHalted, NotApplicable
from discreet.local import ELSE, METHODS, FrequencyOracle
from discreet.local._coins import Coins, SystemCoins, play_all
from discreet.local._linear import ProjectiveGeometry
from discreet.local._methods import DirectResponse, OptimisedUnary
from discreet.mechanisms import channel_epsilon
from discreet.privacy import PureDP, RandomizedResponse
from discreet.randomness import source
from mechanisms.exact_pairs import REJECT, chi_square

# Domains (without the reserved value) and epsilons that reach several primes and set sizes.
SMALL = [
    *((method, domain, "1/2") for method in METHODS for domain in (1, 2, 4)),
    *((method, domain, 2) for method in METHODS for domain in (2, 3)),
    *((method, 7, 1) for method in ("GRR", "SS", "OLH", "HR", "PGR")),
    *((method, 12, "1/2") for method in ("GRR", "OLH", "HR", "PGR")),
    ("PGR", 6, 3),
]


def largest_ratio(rows: list[list[Fraction]]) -> Fraction:
    return max(max(column) / min(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize(("method", "domain", "epsilon"), SMALL)
def test_the_whole_channel_has_exactly_the_stated_odds(
    method: str, domain: int, epsilon: object
) -> None:
    oracle = FrequencyOracle(domain, epsilon, method)
    root = Fraction(7, 5)
    payloads, rows = oracle.channel(root)
    assert all(sum(row) == 1 for row in rows)
    assert len(rows) == domain + 1  # the reserved value is a value like any other
    # Exactly e^epsilon, as a rational number: neither more nor less.
    assert largest_ratio(rows) == root**2
    assert channel_epsilon(rows) == pytest.approx(2 * math.log(1.4), rel=1e-12)
    # p and q of the code are the closed forms, for all pairs, and counting finds the supports.
    p, q = oracle._method.chances(root)
    supports = []
    for payload in payloads:
        tally = oracle._method.new_tally()
        row = np.frombuffer(payload, dtype=np.uint8)[None, :]
        assert oracle._method.valid(row).all()
        oracle._method.add(tally, row)
        supports.append(oracle._method.supports(tally))
    table = np.array(supports, dtype=object)
    found = np.array(rows, dtype=object) @ table
    expected = [[p if x == y else q for y in range(domain + 1)] for x in range(domain + 1)]
    assert found.tolist() == expected
    assert p > q


def test_a_planted_fault_shows_in_the_channel() -> None:
    class Careless(Coins):
        """A uniform number that is never 0: some reports cannot occur."""

        def __init__(self, inner: Coins) -> None:
            self._inner = inner

        def tilted(self, inside, outside, size, *, halves=2):
            return self._inner.tilted(inside, outside, size, halves=halves)

        def uniform(self, below, size):
            return np.maximum(self._inner.uniform(below, size), 1)

        def rational(self, chance, size):
            return self._inner.rational(chance, size)

    root = Fraction(7, 5)
    method = ProjectiveGeometry(5, 1.4)
    rows = [
        play_all(lambda c, x=x: method.randomize(np.array([x]), Careless(c)).tobytes(), root)
        for x in range(5)
    ]
    outputs = sorted(set().union(*rows))
    matrix = [[row.get(output, Fraction()) for output in outputs] for row in rows]
    assert channel_epsilon(matrix) > 2 * math.log(1.4) + 0.1
    # Silence outside the domain would be seen by anyone.
    own = FrequencyOracle(3, 1, "GRR").channel(root)[1][:3]
    silent = [[*row, 0] for row in own] + [[0] * len(own[0]) + [1]]
    assert channel_epsilon(silent) == math.inf


def test_too_large_a_channel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discreet.local._coins._MOST_RUNS", 50)
    with pytest.raises(NotApplicable, match="smaller domain"):
        FrequencyOracle(30, 1, "OUE").channel(2)


@pytest.mark.parametrize(
    ("inside", "outside", "halves"), [(1, 1, 1), (1, 1, 2), (1, 63, 2), (40, 81, 2), (3, 0, 2)]
)
def test_coins_have_their_chances(inside: int, outside: int, halves: int) -> None:
    count = 60_000
    coins = SystemCoins(Fraction(1), source(insecure_seed=31))
    seen = int(coins.tilted(inside, outside, count, halves=halves).sum())
    favoured = inside * math.exp(halves / 2)
    chance = favoured / (favoured + outside)
    if outside == 0:
        assert seen == count
        return
    assert chi_square([seen, count - seen], [chance, 1 - chance]) > REJECT
    wrong = inside / (inside + outside)
    assert chi_square([seen, count - seen], [wrong, 1 - wrong]) < REJECT


def test_a_byte_leaves_no_coin_undecided_wrongly() -> None:
    # A chance of 1/256 and less is decided wholly by the bits after the first byte.
    coins = SystemCoins(Fraction(1, 10**9), source(insecure_seed=32))
    seen = int(coins.tilted(1, 999, 400_000).sum())
    assert stats.binomtest(seen, 400_000, 1e-3).pvalue > REJECT
    assert 300 < seen < 500


@pytest.mark.parametrize("method", METHODS)
def test_measured_variance_is_the_closed_form(method: str) -> None:
    people, rounds, domain = 60, 700, 20
    oracle = FrequencyOracle(domain, 1, method)
    truth = np.array([0] * 30 + [3] * 15 + [domain + 5] * 15)
    reports = oracle.randomize_each(np.tile(truth, rounds), insecure_seed=41)
    shares = []
    for part in np.split(reports, rounds):
        server = oracle.server()
        assert server.aggregate(part) == people
        shares.append(server.estimate().shares)
    table = np.array(shares)
    expected = np.zeros(domain + 1)
    expected[[0, 3, -1]] = 0.5, 0.25, 0.25
    variances = np.array([oracle.variance(people, share=share) for share in expected])
    # Unbiased: 21 normal means; and the variance, whose relative error is about sqrt(2/700).
    z = (table.mean(axis=0) - expected) / np.sqrt(variances / rounds)
    assert np.abs(z).max() < stats.norm.isf(REJECT / 21)
    ratio = table.var(axis=0, ddof=1) / variances
    spread = stats.norm.isf(REJECT / 42) * math.sqrt(2 / (rounds - 1)) * 1.2
    assert np.abs(ratio - 1).max() < spread
    # A wrong variance (that of the other extreme) is rejected, also by its mean over the domain.
    assert ratio.mean() == pytest.approx(1, abs=0.12)
    assert not np.isclose(0.7 * ratio.mean(), 1, atol=0.12)


def test_variances_of_the_literature() -> None:
    def constant(domain: int, epsilon: float, method: str) -> float:
        return FrequencyOracle(domain - 1, epsilon, method).variance(1)

    e = math.e
    assert constant(64, 1, "GRR") == pytest.approx((e + 62) / (e - 1) ** 2)
    assert constant(64, 1, "GRR") == pytest.approx(21.9, abs=0.05)
    assert constant(1024, 1, "GRR") == pytest.approx(347, abs=0.5)
    assert constant(64, 1, "SUE") == pytest.approx(3.918, abs=5e-4)
    assert constant(64, 1, "OUE") == pytest.approx(3.683, abs=2e-3)
    assert constant(64, 1, "HR") == pytest.approx(((e + 1) / (e - 1)) ** 2, rel=1e-12)
    assert constant(64, 4, "OUE") == pytest.approx(0.076, abs=1e-3)
    assert constant(64, 4, "HR") == pytest.approx(1.076, abs=1e-3)


def projective_variance(values: int, odds: float, r: int) -> float | None:
    """n times the variance of the projective response over r elements, from its closed form."""
    t = next(t for t in range(2, 99) if (r**t - 1) // (r - 1) >= values)
    if r**t > 2**23:
        return None
    points, lines, planes = ((r**size - 1) // (r - 1) for size in (t, t - 1, t - 2))
    one = 1 / (odds * lines + points - lines)
    p, q = odds * lines * one, (odds * planes + lines - planes) * one
    return q * (1 - q) / (p - q) ** 2


@pytest.mark.parametrize("domain", [1000, 100_000])
def test_projective_response_takes_the_best_prime_and_is_near_the_optimum(domain: int) -> None:
    primes = [r for r in range(2, 62) if all(r % k for k in range(2, r))]
    for tenths in range(1, 41):
        odds = math.exp(tenths / 10)
        plan = FrequencyOracle(domain, Fraction(tenths, 10), "PGR")
        variances = {r: projective_variance(domain + 1, odds, r) for r in primes}
        possible = {r: variance for r, variance in variances.items() if variance is not None}
        assert plan._method.prime == min(possible, key=possible.__getitem__)
        assert plan.variance(1) == pytest.approx(min(possible.values()), rel=1e-9)
        assert plan.variance(1) < 1.03 * 4 * odds / (odds - 1) ** 2, tenths


def test_the_choice_weighs_variance_bytes_and_work() -> None:
    assert FrequencyOracle(2, 1).method == "GRR"
    assert FrequencyOracle(9, 4).method == "GRR"
    for domain in (63, 1023, 100_000):
        oracle = FrequencyOracle(domain, 1)
        assert oracle.method == "PGR"
        assert oracle.report_bytes <= 15
        assert oracle.why.startswith("PGR: variance 3.")
        assert "GRR" in oracle.why
        # No more than 3 % above what is possible for large domains.
        assert oracle.variance(1) < 1.03 * 4 * math.e / (math.e - 1) ** 2
    assert FrequencyOracle(63, 1, "SUE").why == "asked for"


def test_losses_are_those_of_a_person() -> None:
    assert FrequencyOracle(63, "1/3", "OUE").loss == PureDP("1/3", relation="replace")
    loss = FrequencyOracle(3, "1/3", "GRR").loss
    assert isinstance(loss, RandomizedResponse)
    assert Fraction(loss.pure_epsilon) >= Fraction(1, 3)
    client = FrequencyOracle(63, 1, "PGR").client(reports=3)
    assert client.loss.epsilon(delta=0) == 3


def test_a_client_stops_at_her_number_of_reports_whatever_the_value() -> None:
    oracle = FrequencyOracle(5, 1)
    for value in (0, 99, None):
        client = oracle.client(reports=2)
        assert {len(client.randomize(value)) for _ in range(2)} == {oracle.report_bytes}
        assert client.sent == 2
        with pytest.raises(MechanismHalted, match="all 2 reports"):
            client.randomize(value)


@pytest.mark.parametrize(
    "outside", [-1, 4, 10**30, -(10**30), 1.5, math.nan, None, "0", [1], True, object()]
)
def test_what_is_outside_the_domain_becomes_the_reserved_value(outside: object) -> None:
    oracle = FrequencyOracle(4, 100, "GRR")  # at epsilon 100 the value is reported as it is
    assert oracle.domain.places([outside]).tolist() == [4]
    server = oracle.server()
    assert server.aggregate(oracle.client().randomize(outside)) == 1
    assert server.estimate().values[int(np.argmax(server.estimate().shares))] is ELSE
    names = FrequencyOracle(["a", "b"], 1)
    assert names.domain.places([outside, "b"]).tolist() == [2, 1]


def test_values_come_in_many_forms() -> None:
    domain = FrequencyOracle(4, 1).domain
    for values in (
        [0, 3, 7],
        (0, 3, 7),
        iter([0, 3, 7]),
        np.array([0, 3, 7], dtype=np.uint8),
        np.array([0, 3, 2**63], dtype=np.uint64),
        np.array([0.0, 3.0, np.nan]),
        np.array([0, 3, None], dtype=object),
    ):
        assert domain.places(values).tolist() == [0, 3, 4]
    assert FrequencyOracle(np.array(["x", "y"]), 1).domain.places(
        np.array(["y", "z"])
    ).tolist() == [
        1,
        2,
    ]
    for wrong in ("abc", 3, None, np.zeros((2, 2), dtype=int)):
        with pytest.raises(InvalidValue, match="withheld"):
            domain.places(wrong)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0, 1), "domain"),
        ((2**31, 1), "domain"),
        ((True, 1), "domain"),
        (("abc", 1), "domain"),
        ((["a", "a"], 1), "domain"),
        (([1.5], 1), "domain"),
        (([], 1), "domain"),
        ((5, 0), "epsilon"),
        ((5, -1), "epsilon"),
        ((5, math.inf), "epsilon"),
        ((5, 101), "epsilon"),
        ((5, "1e-7"), "epsilon"),
        ((5, None), "epsilon"),
        ((5, 1, "OLHH"), "method"),
        ((2**17, 1, "OUE"), "domain"),
        ((2**24, 1, "PGR"), "domain"),
    ],
)
def test_bad_plans_are_refused(arguments: tuple, names: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        FrequencyOracle(*arguments)
    assert caught.value.argument == names


def test_bad_arguments_of_both_sides() -> None:
    oracle = FrequencyOracle(5, 1)
    with pytest.raises(InvalidValue, match="reports"):
        oracle.client(reports=0)
    with pytest.raises(InvalidValue, match="people"):
        oracle.variance(0)
    with pytest.raises(NotApplicable, match="no report"):
        oracle.server().estimate()
    server = oracle.server()
    with pytest.raises(InvalidValue, match="another"):
        server.merge(server)
    with pytest.raises(InvalidValue, match="plan"):
        server.merge(FrequencyOracle(5, 2).server())


@given(st.sampled_from(METHODS), st.integers(1, 40), st.lists(st.integers(-3, 45), max_size=30))
def test_servers_merge_and_one_by_one_is_all_at_once(
    method: str, domain: int, values: list[int]
) -> None:
    oracle = FrequencyOracle(domain, "3/2", method)
    rows = oracle.randomize_each(values, insecure_seed=5)
    assert rows.shape == (len(values), oracle.report_bytes)
    whole, left, right = oracle.server(), oracle.server(), oracle.server()
    assert whole.aggregate(rows) == len(values)
    half = len(values) // 2
    left.aggregate([row.tobytes() for row in rows[:half]])
    right.aggregate(bytearray(row) for row in rows[half:])
    left.merge(right)
    assert left.accepted == whole.accepted == len(values)
    assert not whole.rejected
    if values:
        assert left.estimate().shares.tolist() == whole.estimate().shares.tolist()


def test_the_coins_of_two_values_do_not_differ_in_number() -> None:
    # The bits that a direct or unary client reads do not depend on the value.
    class Counting(Coins):
        def __init__(self) -> None:
            self.inner = SystemCoins(Fraction(1), source(insecure_seed=3))
            self.asked: list[tuple] = []

        def tilted(self, inside, outside, size, *, halves=2):
            self.asked.append((inside, outside, size))
            return self.inner.tilted(inside, outside, size, halves=halves)

        def uniform(self, below, size):
            self.asked.append((below, size))
            return self.inner.uniform(below, size)

        def rational(self, chance, size):
            return self.inner.rational(chance, size)

    for method in (DirectResponse(9, 1.5), OptimisedUnary(9, 1.5), ProjectiveGeometry(9, 1.5)):
        asked = []
        for value in (0, 8):
            coins = Counting()
            method.randomize(np.array([value]), coins)
            asked.append(coins.asked)
        assert asked[0] == asked[1]
