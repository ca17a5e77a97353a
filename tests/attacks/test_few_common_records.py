"""A pool of the attacker's own may share a few records with the target by accident."""

import numpy as np
import pytest
from sklearn.tree import DecisionTreeClassifier

from discreet.attacks import ShadowPool, observe_split, shokri, yeom


@pytest.mark.parametrize("common", [1, 3, 6, 12])
@pytest.mark.parametrize("side", ["members", "nonmembers"])
def test_a_few_records_in_common_are_no_reason_to_refuse(common: int, side: str) -> None:
    draw = np.random.default_rng(common)
    x, y = draw.normal(size=(240, 3)), draw.integers(2, size=240)

    def train(indices: object) -> DecisionTreeClassifier:
        return DecisionTreeClassifier(max_depth=3, random_state=0).fit(x[indices], y[indices])

    shadows = ShadowPool(
        x[:80], y[:80], lambda i: train(i), models=12, seed=0, cache_key="trees"
    ).run()
    shared, foreign = np.arange(common), np.arange(80, 240)
    inside = np.concatenate([shared if side == "members" else shared[:0], foreign[:80]])
    outside = np.concatenate([shared if side == "nonmembers" else shared[:0], foreign[80:]])
    seen = observe_split(
        train(inside), members=(x[inside], y[inside]), nonmembers=(x[outside], y[outside])
    )
    # None of them was trained on the target's records: most of these are not in the pool.
    assert len(shadows.apart_from(seen)) == 12
    assert shokri(seen, shadows, seed=0).auc > 0.5
    assert yeom(seen, shadows=shadows).auc > 0.5
