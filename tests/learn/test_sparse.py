"""Sparse matrices: the same model, bit for bit, as of the rows that they stand for."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer

from discreet.errors import InvalidValue
from discreet.learn import (
    PrivateAdditiveClassifier,
    PrivateKMeans,
    PrivateLogisticRegression,
)

FACTS = {"classes": [0, 1], "bounds": (-1.0, 1.0), "expected_rows": 300, "insecure_seed": 3}


def table():
    rng = np.random.default_rng(0)
    x = np.where(rng.random((300, 6)) < 0.3, rng.uniform(-1, 1, (300, 6)), 0.0)
    return x, (x[:, 0] > 0).astype(int)


@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.coo_array])
def test_sparse_and_dense_rows_give_one_model(form):
    x, y = table()
    dense = PrivateLogisticRegression(**FACTS).fit(x, y)
    thin = PrivateLogisticRegression(**FACTS).fit(form(x), y)
    np.testing.assert_array_equal(dense.coef_, thin.coef_)
    np.testing.assert_array_equal(dense.predict_proba(x), thin.predict_proba(form(x)))
    asked = {"bounds": (-1.0, 1.0), "expected_rows": 300, "insecure_seed": 1, "n_clusters": 2}
    centres = [PrivateKMeans(**asked).fit(one).cluster_centers_ for one in (x, form(x))]
    np.testing.assert_array_equal(*centres)


def test_learners_of_cells_say_that_they_take_no_sparse_rows():
    x, y = table()
    with pytest.raises((InvalidValue, TypeError), match=r"[Ss]parse"):
        PrivateAdditiveClassifier(**FACTS).fit(sparse.csr_matrix(x), y)


def test_hashed_words_of_declared_norm_predict():
    """2,048 hashed columns: the norm is declared, because the vectorizer makes rows that long."""
    rng = np.random.default_rng(0)
    words = np.array([f"w{at}" for at in range(400)])
    tilt = np.where(np.arange(400) % 4 == 0, rng.choice([-1.5, 1.5], 400), 0.0)
    y = rng.integers(0, 2, 4000)
    chances = [np.exp(sign * tilt) / np.exp(sign * tilt).sum() for sign in (-1, 1)]
    texts = [" ".join(rng.choice(words, 30, p=chances[label])) for label in y]
    x = HashingVectorizer(n_features=2048, norm="l2").transform(texts)
    facts = {**FACTS, "expected_rows": 3000, "feature_norm": 1.0, "epsilon": 3.0}
    model = PrivateLogisticRegression(**facts).fit(x[:3000], y[:3000])
    said = model.predict(x[3000:])
    assert np.mean(said == y[3000:]) > 0.8
    assert 0.3 < np.mean(said) < 0.7
