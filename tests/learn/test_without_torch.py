"""Networks are trained with torch; what was saved is read and predicts without it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from discreet.errors import NotApplicable, SchemaError
from discreet.learn import PrivateEstimator, load_model

SAVED = Path(__file__).parents[1] / "recorded" / "v0_1" / "train-mlp"
STUDENT = SAVED.with_name("student")

CHILD = """
import sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from discreet.errors import NotApplicable
from discreet.certificate import read_certificate
from discreet.learn.dpsgd import Plan
from discreet.learn import load_model
from discreet.learn import PrivateMLPClassifier

model = load_model(sys.argv[1])
record = {name: [None] for name in model.schema.features}
print(model.certificate_.loss)
print(model.predict_proba(record).tolist())
read_certificate(Path(sys.argv[2]))
try:
    PrivateMLPClassifier(classes=[0, 1], bounds=(0.0, 1.0), expected_rows=9).fit([[0.1]], [0])
except NotApplicable as error:
    print(error)
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_a_saved_network_is_loaded_and_predicts_without_torch():
    paper = SAVED.with_name("dpsgd-trainer") / "certificate.json"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(SAVED), str(paper)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loss, scores, refused = done.stdout.splitlines()
    model = load_model(SAVED)
    record = {name: [None] for name in model.schema.features}
    assert loss == str(model.certificate_.loss)
    expected = model.predict_proba(record).tolist()
    assert np.allclose(json.loads(scores), expected)
    assert "networks need torch to be trained" in refused


def test_a_missing_package_is_not_called_damage(monkeypatch):
    from discreet.pate import PATEClassifier

    def load(*_):
        raise ModuleNotFoundError("No module named 'numba'", name="numba")

    monkeypatch.setattr(PrivateEstimator, "_from_file", load)
    monkeypatch.setattr(PATEClassifier, "_from_file", load)
    with pytest.raises(NotApplicable, match="needs numba, which is not installed"):
        load_model(SAVED)
    with pytest.raises(NotApplicable, match="needs numba, which is not installed"):
        load_model(STUDENT)


def test_damage_is_still_called_damage(monkeypatch):
    def load(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(PrivateEstimator, "_from_file", load)
    with pytest.raises(SchemaError, match="damaged"):
        load_model(SAVED)
