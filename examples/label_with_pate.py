"""Label public rows by a vote of private teachers, and train a student that may be released.

Run it with `python examples/label_with_pate.py`; it needs the extra `tables`.
"""

import numpy as np
from sklearn.naive_bayes import GaussianNB

from discreet.pate import PATEClassifier

draw = np.random.default_rng(0)
records = draw.normal(size=(2_000, 2))  # private
ill = np.where(records.sum(axis=1) > 0, "yes", "no")
public = draw.normal(size=(200, 2))  # of the same kind, public, without labels

model = PATEClassifier(
    classes=["no", "yes"],
    epsilon=2,
    delta=1e-5,
    teachers=40,
    teacher=GaussianNB(),
    student="table",
)
cost = model.rehearse(public)  # nothing private is read
print(f"fit will charge epsilon {cost.epsilon(delta=1e-5):.2f}")
model.fit(records, ill, public=public)
print(f"labels paid for: {model.certificate_.plan['labels_answered']}")
print(f"right about {model.score(records, ill):.0%} of the records (a private figure)")
