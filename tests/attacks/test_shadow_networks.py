"""Networks trained many at once (S28): the same as one by one, and as a plain loop."""

import numpy as np
import pytest
import torch
from torch import nn

from discreet._cache import describe
from discreet.attacks import NetworkTrainer, Perceptron, ShadowPool, lira, yeom
from discreet.errors import InvalidValue

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(120, 6)).astype(np.float32)
Y = DRAW.integers(0, 3, 120)
HALVES = [np.flatnonzero(DRAW.permutation(120) < 60) for _ in range(5)]
SEEDS = [11, 12, 13, 14, 15]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 2), nn.ReLU(), nn.MaxPool2d(1), nn.Flatten(), nn.Linear(8, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x.reshape(-1, 1, 2, 3))  # type: ignore[no-any-return]


NETWORKS = [Perceptron(6, 3), Perceptron(6, 3, (16, 8), "tanh"), Convolution]


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("network", NETWORKS, ids=["logistic", "perceptron", "convolution"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_many_at_once_are_the_same_as_one_by_one(network: type, optimizer: str) -> None:
    trainer = NetworkTrainer(
        X,
        Y,
        network,
        epochs=4,
        batch_size=25,  # the last batch is smaller
        learning_rate=0.01,
        optimizer=optimizer,
        momentum=0.5 if optimizer == "sgd" else 0.0,
        weight_decay=1e-3,
    )
    together = trainer.many(HALVES, SEEDS)
    for model, half, seed in zip(together, HALVES, SEEDS, strict=True):
        alone = trainer(half, seed)
        torch.testing.assert_close(weights(model), weights(alone), atol=2e-5, rtol=1e-4)
    # They really moved, and apart.
    start = trainer._start(SEEDS[0])
    assert (weights(together[0]) - weights(start)).abs().max() > 1e-3
    assert (weights(together[0]) - weights(together[1])).abs().max() > 1e-2


def test_one_by_one_is_the_plain_loop() -> None:
    trainer = NetworkTrainer(
        X, Y, Perceptron(6, 3, (5,)), epochs=3, batch_size=16, learning_rate=0.05, optimizer="sgd"
    )
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    order = torch.Generator().manual_seed(11)
    half = torch.from_numpy(HALVES[0])
    for _ in range(3):
        shuffled = half[torch.randperm(60, generator=order)]
        for start in range(0, 60, 16):
            batch = shuffled[start : start + 16]
            logits = model(torch.from_numpy(X)[batch])
            rows = torch.arange(len(batch))
            loss = -(logits.log_softmax(dim=1)[rows, torch.from_numpy(Y)[batch]]).mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter -= 0.05 * gradient
    torch.testing.assert_close(weights(trainer(HALVES[0], 11)), weights(model))


def test_only_the_given_records_are_used() -> None:
    changed = X.copy()
    outside = np.setdiff1d(np.arange(120), HALVES[0])
    changed[outside] = 1e6
    make = Perceptron(6, 3, (4,))
    one = NetworkTrainer(X, Y, make, epochs=2).many(HALVES[:1] * 2, SEEDS[:2])
    two = NetworkTrainer(changed, Y, make, epochs=2).many(HALVES[:1] * 2, SEEDS[:2])
    for left, right in zip(one, two, strict=True):
        torch.testing.assert_close(weights(left), weights(right))


@pytest.mark.parametrize(
    "layer", [nn.Dropout(0.5), nn.BatchNorm1d(6)], ids=["dropout", "normalisation"]
)
def test_what_cannot_be_stacked_is_trained_one_by_one(layer: nn.Module) -> None:
    import copy

    def network() -> nn.Module:
        return nn.Sequential(copy.deepcopy(layer), nn.Linear(6, 3))

    trainer = NetworkTrainer(X, Y, network, epochs=1)
    models = trainer.many(HALVES[:2], SEEDS[:2])
    assert len(models) == 2
    assert not models[0].training
    uneven = NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1).many(
        [HALVES[0], HALVES[1][:20]], SEEDS[:2]
    )
    assert len(uneven) == 2


def test_torch_s_own_chance_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1).many(HALVES[:2], SEEDS[:2])
    assert torch.equal(before, torch.random.get_rng_state())


def test_keys_tell_settings_apart() -> None:
    one = NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1)
    keys = {
        one.cache_key,
        NetworkTrainer(X, Y, Perceptron(6, 3), epochs=2).cache_key,
        NetworkTrainer(X, Y, Perceptron(6, 3, (4,)), epochs=1).cache_key,
        NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1, learning_rate=0.1).cache_key,
        NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1, optimizer="sgd").cache_key,
    }
    assert len(keys) == 5
    assert NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1).cache_key == one.cache_key


def test_keys_tell_data_and_versions_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.array(X, copy=True), np.array(Y, copy=True)
    trainer = NetworkTrainer(x, y, Perceptron(6, 3), epochs=1)
    keys = {trainer.cache_key, NetworkTrainer(x, y, Perceptron(6, 3), epochs=1).cache_key}
    assert len(keys) == 1
    x[3, 2] += 1
    keys.add(NetworkTrainer(x, y, Perceptron(6, 3), epochs=1).cache_key)
    y[3] = (y[3] + 1) % 3
    keys.add(NetworkTrainer(x, y, Perceptron(6, 3), epochs=1).cache_key)
    assert len(keys) == 3
    before = describe(trainer)
    monkeypatch.setattr("discreet._cache.versions", lambda: ["torch 0.0.1"])
    assert describe(trainer) != before


def test_a_network_of_ones_own_needs_a_text() -> None:
    def network() -> nn.Module:
        return nn.Linear(6, 3)

    assert NetworkTrainer(X, Y, network, epochs=1).cache_key is None
    with pytest.raises(InvalidValue, match="cache_key"):
        describe(NetworkTrainer(X, Y, network, epochs=1))
    network.cache_key = "linear 6-3"  # type: ignore[attr-defined]
    assert "linear 6-3" in str(NetworkTrainer(X, Y, network, epochs=1).cache_key)
    describe(NetworkTrainer(X, Y, network, epochs=1))


def test_bad_input() -> None:
    for change, message in (
        ({"epochs": 0}, "epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"momentum": 1.0}, "momentum"),
    ):
        with pytest.raises(InvalidValue, match=message):
            NetworkTrainer(X, Y, Perceptron(6, 3), **{"epochs": 1, **change})  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="labels"):
        NetworkTrainer(X, Y[:3], Perceptron(6, 3), epochs=1)
    with pytest.raises(InvalidValue, match="classes"):
        Perceptron(6, 1)
    with pytest.raises(InvalidValue, match="activation"):
        Perceptron(6, 2, activation="sine")
    with pytest.raises(InvalidValue, match="seeds"):
        NetworkTrainer(X, Y, Perceptron(6, 3), epochs=1).many(HALVES[:2], SEEDS[:1])


def test_real_networks_that_memorise_give_members_away() -> None:
    """Random labels can only be memorised; a network that never saw them is at chance."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(400, 20)).astype(np.float32)
    y = draw.integers(0, 2, 400)
    trainer = NetworkTrainer(
        x, y, Perceptron(20, 2, (32,)), epochs=40, batch_size=40, learning_rate=0.01
    )
    pool = ShadowPool(x, y, trainer, models=17, seed=2, group=17)
    seen, others = pool.run().leave_out(0)
    # Half of the unseen labels are guessed right, with confidence: one threshold misses them.
    assert yeom(seen).auc > 0.75
    assert lira(seen, others).auc > 0.85
    # Twelve epochs on other people: six standard deviations of the area, 0.029 each.
    z = draw.normal(size=(400, 20)).astype(np.float32)
    stranger = NetworkTrainer(
        z, y, Perceptron(20, 2, (32,)), epochs=12, batch_size=40, learning_rate=0.01
    )(np.arange(400), 5)
    unseen = pool.observe(stranger, members=pool.inclusion[0])
    assert abs(yeom(unseen).auc - 0.5) < 6 * 0.029
    assert abs(lira(unseen, others).auc - 0.5) < 6 * 0.029
