"""Train a classifier on a table, charged to a ledger, and read its certificate.

Run it with `python examples/train_table.py`; it needs the extra `tables`.
"""

import tempfile
from pathlib import Path

import numpy as np

from discreet.errors import BudgetExceeded
from discreet.learn import PrivateLogisticRegression
from discreet.ledger import Ledger

# Your records: here the age of 2,000 patients, and whether they are ill.
ages = np.random.default_rng(0).uniform(0, 100, size=(2000, 1))
ill = np.where(ages[:, 0] > 50, "yes", "no")

with tempfile.TemporaryDirectory() as folder:
    ledger = Ledger.create(Path(folder) / "study.ledger")
    ledger.create_dataset("patients", epsilon=1, delta="1e-4", reserved="1e-5", unit="patient")

    # Bounds, classes and the order of magnitude of the rows are public facts that you declare.
    model = PrivateLogisticRegression(
        epsilon=0.9, classes=["no", "yes"], bounds=(0, 100), expected_rows=2000
    )
    model.fit(ages, ill, ledger=ledger, dataset="patients", unit="patient")
    print(f"epsilon at most {model.certificate_.epsilon:.3f} at delta {model.certificate_.delta:g}")
    print("ages 20 and 80:", *model.predict([[20.0], [80.0]]))

    try:
        model.fit(ages, ill, ledger=ledger, dataset="patients", unit="patient")
    except BudgetExceeded as refusal:
        print("a second fit is refused:", str(refusal).splitlines()[0])
    ledger.close()
