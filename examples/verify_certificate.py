"""Check a certificate that somebody sent: every bound is computed again, lies are found.

Run it with `python examples/verify_certificate.py`; it needs the extra `tables`.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from discreet.learn import PrivateLogisticRegression
from discreet.report import verify_certificate

ages = np.random.default_rng(0).uniform(0, 100, size=(500, 1))
model = PrivateLogisticRegression(epsilon=1, classes=[0, 1], bounds=(0, 100), expected_rows=500)
model.fit(ages, (ages[:, 0] > 50).astype(int))
marks = {True: "right", False: "WRONG", None: "not checked"}

with tempfile.TemporaryDirectory() as folder:
    sent = Path(folder) / "certificate.json"
    document = model.certificate_.to_json()
    for epsilon in (document["epsilon"], 0.5):
        sent.write_text(json.dumps({**document, "epsilon": epsilon}))
        print(f"it states epsilon {epsilon:.3f}:")
        for check in verify_certificate(sent):
            print(f"  {marks[check.ok]}: {check.what}")
