"""S31: what a server reads from updates of clients, beside chance and beside a null target.

C28, C29: the honest-but-curious server, and one that sends weights of its own choice. Intervals
are at 1 - 1e-7: a null target leaks with at most that probability, a test fails as rarely.
"""

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn

from discreet.attacks import (
    ATTACKS,
    Attribute,
    client_updates,
    imprint_model,
    imprinted_pictures,
    prior_informed,
    run_attack,
    trap_weights,
    update_attribute,
    update_labels,
    update_membership,
    update_pictures,
    update_property,
    update_tokens,
)
from discreet.errors import InvalidValue, NotApplicable
from discreet.privacy import Gaussian

SURE = 1 - 2e-7
DIGITS = load_digits()
X, Y = (DIGITS.data / 16.0), DIGITS.target.astype(np.int64)
PUBLIC = X[1400:], Y[1400:]


@pytest.fixture(scope="module")
def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()


def clients(count: int, batch: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(start, start + count * batch).reshape(count, batch)
    return X[rows], Y[rows]


def noise_of(updates: np.ndarray, seed: int = 1) -> np.ndarray:
    """Updates of the same size that no record had a part in."""
    length = np.linalg.norm(updates, axis=1).mean()
    rng = np.random.default_rng(seed)
    return rng.normal(0, length / updates.shape[1] ** 0.5, updates.shape)


@pytest.mark.parametrize("batch", [1, 4])
def test_the_last_bias_gives_labels_away_and_noise_does_not(mlp, batch):
    records, labels = clients(150, batch)
    updates = client_updates(mlp, records, labels)
    found = update_labels(mlp, updates, labels, confidence=SURE)
    assert found.leaks
    assert found.labels_found > 0.95
    if batch == 1:
        assert found.found.share == 1.0
    assert not update_labels(mlp, noise_of(updates), labels, confidence=SURE).leaks
    # What the guarantee at epsilon 2 leaves: clip 1 and the noise of one Gaussian release.
    private = client_updates(mlp, records, labels, clip_norm=1.0, stddev=2.0, seed=3)
    assert not update_labels(mlp, private, labels, confidence=SURE).leaks


def test_the_chance_of_labels_is_that_of_the_likeliest_counts(mlp):
    # Two classes, three to one: of four draws "3 and 1" is the likeliest, with 4 * (3/4)^3 / 4.
    labels = np.tile([[0, 0, 0, 1]], (10, 1))
    found = update_labels(mlp, np.ones((10, 2410)), labels)
    assert found.chance == pytest.approx(4 * 0.75**3 * 0.25, rel=1e-9)


def test_a_linear_layer_gives_its_input_away(mlp):
    records, labels = clients(40, 1)
    updates = client_updates(mlp, records, labels)
    found = update_pictures(mlp, updates, records, labels, PUBLIC, confidence=SURE)
    assert found.identified.share == 1.0
    assert found.clearer.share == 1.0
    assert found.leaks
    assert found.psnr_interval[0] > 150
    assert found.blind_psnr < 20
    body = json.dumps(found.to_json())
    assert "reconstructions" not in body
    assert "psnr_each" not in body
    blind = update_pictures(mlp, noise_of(updates), records, labels, PUBLIC, confidence=SURE)
    assert not blind.leaks
    assert blind.clearer.share < 0.2
    private = client_updates(mlp, records, labels, clip_norm=1.0, stddev=2.0, seed=3)
    hidden = update_pictures(mlp, private, records, labels, PUBLIC, confidence=SURE)
    assert not hidden.leaks


@pytest.mark.parametrize(("method", "decibels"), [("match", 40.0), ("cosine", 18.0)])
def test_searches_find_pictures_behind_a_convolution(method, decibels):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(512, 10)
    ).double()
    records, labels = clients(3, 1)
    records = records.reshape(3, 1, 1, 8, 8)
    public = PUBLIC[0].reshape(-1, 1, 8, 8), PUBLIC[1]
    updates = client_updates(model, records, labels)
    found = update_pictures(
        model, updates, records, labels, public, method=method, steps=120, seed=1
    )
    assert found.psnr > decibels
    assert found.identified.share == 1.0
    assert found.ssim > 0.9
    null = update_pictures(
        model, noise_of(updates), records, labels, public, method=method, steps=20, seed=1
    )
    assert null.identified.share == 0.0


def test_a_search_goes_through_several_local_steps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10)).double()
    records, labels = clients(2, 1)
    way = {"local_steps": 3, "local_rate": 0.5}
    updates = client_updates(model, records, labels, **way)
    known = {"method": "match", "steps": 200, "seed": 1}
    right = update_pictures(model, updates, records, labels, PUBLIC, **way, **known)
    wrong = update_pictures(model, updates, records, labels, PUBLIC, **known)
    assert right.psnr > 40 > wrong.psnr


def test_an_imprinted_layer_reads_single_pictures_of_a_batch():
    model = imprint_model(PUBLIC[0], bins=128, classes=10).double()
    records, labels = clients(8, 16)
    updates = client_updates(model, records, labels)
    public = np.concatenate([PUBLIC[0]] * 10), np.concatenate([PUBLIC[1]] * 10)
    found = imprinted_pictures(model, updates, records, labels, public, confidence=SURE)
    assert found.identified.share > 0.5
    assert found.chance == 128 / (len(public[0]) + 1)
    assert found.leaks
    null = imprinted_pictures(model, noise_of(updates), records, labels, public, confidence=SURE)
    assert not null.leaks
    # An honest network gives no single picture of so large a batch.
    torch.manual_seed(0)
    honest = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double()
    mixed = update_pictures(
        honest, client_updates(honest, records, labels), records, labels, PUBLIC, confidence=SURE
    )
    assert mixed.identified.share < 0.2


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 8)
        self.last = nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(tokens).mean(dim=1))


def test_rows_of_an_embedding_are_the_words_of_a_text():
    torch.manual_seed(0)
    model = Bag().double()
    rng = np.random.default_rng(0)
    texts = rng.integers(1, 60, (80, 1, 6))
    labels = rng.integers(0, 2, (80, 1))
    updates = client_updates(model, texts, labels)
    found = update_tokens(model, updates, texts, padding=0, confidence=SURE)
    assert found.whole.share == 1.0
    assert found.leaks
    assert not update_tokens(model, noise_of(updates), texts, padding=0, confidence=SURE).leaks
    stddev = 2.0
    private = client_updates(model, texts, labels, clip_norm=1.0, stddev=stddev, seed=2)
    hidden = update_tokens(model, private, texts, padding=0, stddev=stddev, confidence=SURE)
    assert not hidden.leaks
    assert hidden.whole.share == 0.0


def candidate_game(model, *, sigma, trials=250, count=10, seed=0):
    rng = np.random.default_rng(seed)
    places = rng.integers(0, 1400, (trials, count))
    truth = rng.integers(0, count, trials)
    chosen = places[np.arange(trials), truth]
    updates = client_updates(
        model, X[chosen][:, None], Y[chosen][:, None], clip_norm=1.0, stddev=sigma, seed=rng
    )
    return updates, X[places], Y[places], truth


@pytest.mark.parametrize("sigma", [2.0, 0.5])
def test_the_prior_informed_attack_stays_below_the_bound_and_refutes_a_lower_claim(mlp, sigma):
    updates, records, labels, truth = candidate_game(mlp, sigma=sigma)
    claim = Gaussian(noise_multiplier=sigma)
    found = prior_informed(
        mlp, updates, records, labels, truth, clip_norm=1.0, loss=claim, confidence=SURE
    )
    assert not found.refutes
    assert found.audited_epsilon <= claim.epsilon(delta=1e-5)
    if sigma < 1:
        assert found.leaks
        # A mutant that adds a quarter of the noise that it states.
        more = candidate_game(mlp, sigma=sigma / 4)
        wrong = prior_informed(mlp, *more, clip_norm=1.0, loss=claim, confidence=SURE)
        assert wrong.refutes
    null = prior_informed(mlp, noise_of(updates), records, labels, truth, confidence=SURE)
    assert not null.leaks
    assert null.audited_epsilon < 0.5


def test_an_attacker_whose_epsilon_is_known_is_audited_near_it(mlp):
    # Without noise, ten candidates: success 1, so epsilon is at least about log 10.
    found = prior_informed(mlp, *candidate_game(mlp, sigma=0.0), clip_norm=1.0, confidence=SURE)
    assert found.right.share > 0.99
    assert 2.1 < found.audited_epsilon < np.log(10)


CANCER = load_breast_cancer()
TABLE = (CANCER.data - CANCER.data.mean(0)) / CANCER.data.std(0)
OUTCOME = CANCER.target.astype(np.int64)


def people(count: int, batch: int, seed: int = 0):
    """Clients of some records each, and a record for each of which every second one is its own."""
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(500)[: batch + 1] for _ in range(count)])
    inside = np.arange(count) % 2 == 0
    asked = np.where(inside, rows[:, 0], rows[:, batch])
    return rows[:, :batch], asked, inside


def table_network(seed: int = 0, hidden: int = 96) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, hidden), nn.ReLU(), nn.Linear(hidden, 2)).double()


PRIVATE = {"clip_norm": 1.0, "stddev": 2.0, "seed": 4}
SERVERS = pytest.mark.parametrize("server", ["honest but curious", "malicious"])


@SERVERS
def test_membership_in_the_batch_behind_an_update(server):
    rows, asked, inside = people(200, 6)
    model = table_network(hidden=512)
    if server == "malicious":
        model = trap_weights(model, TABLE[np.unique(asked)], TABLE[500:])
    updates = client_updates(model, TABLE[rows], OUTCOME[rows])
    about = TABLE[asked], OUTCOME[asked], inside
    result = update_membership(model, updates, *about)
    low, _ = result.auc_interval(confidence=SURE)
    assert low > (0.5 if server == "honest but curious" else 0.7)
    null = update_membership(model, noise_of(updates), *about)
    low, high = null.auc_interval(confidence=SURE)
    assert low < 0.5 < high
    private = client_updates(model, TABLE[rows], OUTCOME[rows], **PRIVATE)
    hidden = update_membership(model, private, *about, clip_norm=1.0)
    assert hidden.auc_interval(confidence=SURE)[0] < 0.5


@SERVERS
def test_a_hidden_attribute_of_a_record_behind_an_update(server):
    rng = np.random.default_rng(0)
    table = TABLE.copy()
    table[:, 5] = np.where(rng.random(len(table)) < 0.5, 1.0, -1.0)
    attribute = Attribute("made up", columns=5, candidates=[-1.0, 1.0])
    rows, _, _ = people(120, 4)
    first = rows[:, 0]
    model = table_network(hidden=512)
    if server == "malicious":
        versions = np.repeat(table[np.unique(first)], 2, axis=0)
        versions[:, 5] = np.tile([-1.0, 1.0], len(versions) // 2)
        model = trap_weights(model, versions, table[500:])
    updates = client_updates(model, table[rows], OUTCOME[rows])
    about = table[first], OUTCOME[first], attribute
    found = update_attribute(model, updates, *about, confidence=SURE)
    assert found.leaks
    assert server == "honest but curious" or found.right.share > 0.9
    assert not update_attribute(model, noise_of(updates), *about, confidence=SURE).leaks
    private = client_updates(model, table[rows], OUTCOME[rows], **PRIVATE)
    assert not update_attribute(model, private, *about, confidence=SURE).leaks


@SERVERS
def test_a_property_of_the_data_behind_an_update(server):
    rng = np.random.default_rng(1)
    holds = rng.random(400) < 0.5
    rows = rng.integers(0, 500, (400, 8))
    table = TABLE[rows]
    table[:, :, 5] = np.where(rng.random((400, 8)) < np.where(holds, 0.9, 0.1)[:, None], 1.0, -1.0)
    model = table_network(hidden=16)
    if server == "malicious":
        # One unit reads the attribute, and answers to those who have it.
        model = trap_weights(model, 1.0 * np.eye(30)[[5]], np.vstack([np.eye(30), -np.eye(30)]))
    updates = client_updates(model, table, OUTCOME[rows])
    found = update_property(model, updates, holds, confidence=SURE)
    assert found.leaks
    assert server == "honest but curious" or found.right.share > 0.9
    assert not update_property(model, noise_of(updates), holds, confidence=SURE).leaks
    private = client_updates(model, table, OUTCOME[rows], **PRIVATE)
    assert not update_property(model, private, holds, confidence=SURE).leaks


def test_they_are_in_the_registry_and_run_by_name(mlp):
    records, labels = clients(5, 1)
    inputs = {
        "target": mlp,
        "updates": client_updates(mlp, records, labels),
        "labels": labels,
        "records": records,
        "auxiliary": PUBLIC,
    }
    run = run_attack("update_pictures", inputs, method="analytic")
    assert run.finding is not None
    assert run.finding.trials == 5
    assert ATTACKS["update_pictures"].access == "gradients"


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"updates": np.zeros((5, 3))}, "updates"),
        ({"updates": np.full((5, 2410), np.nan)}, "updates"),
        ({"records": X[:4, None]}, "records"),
        ({"auxiliary": (X[:4, :9], Y[:4])}, "auxiliary"),
        ({"method": "magic"}, "method"),
        ({"steps": 0, "method": "match"}, "steps"),
    ],
)
def test_what_does_not_fit_is_refused(mlp, change, argument):
    records, labels = clients(5, 1)
    given = {
        "updates": client_updates(mlp, records, labels),
        "records": records,
        "labels": labels,
        "auxiliary": PUBLIC,
    }
    with pytest.raises(InvalidValue) as refused:
        update_pictures(mlp, **{**given, **change})
    assert refused.value.argument == argument


def test_models_that_an_attack_cannot_read_are_refused(mlp):
    records, labels = clients(2, 1)
    with pytest.raises(NotApplicable, match="torch module"):
        client_updates(lambda x: x, records, labels)
    bare = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False)).double()
    with pytest.raises(NotApplicable, match="linear layer"):
        update_labels(bare, client_updates(bare, records, labels), labels)
    with pytest.raises(NotApplicable, match="embedding"):
        update_tokens(mlp, client_updates(mlp, records, labels), np.zeros((2, 1), dtype=int))
    with pytest.raises(InvalidValue, match="records"):
        trap_weights(mlp, X[:40], X[:100])
    with pytest.raises(InvalidValue, match="mean"):
        trap_weights(mlp, X[:100].mean(axis=0)[None], X[:100])
