"""Label public digits by a vote of private teachers, and train a student that may be released.

Run it with `python examples/label_with_pate.py`; it needs the extra `tables`.
"""

from sklearn.datasets import load_digits
from sklearn.naive_bayes import GaussianNB

from discreet.pate import PATEClassifier

images, digits = load_digits(return_X_y=True)
large = (digits >= 5).astype(int)
private, public, fresh = slice(0, 1200), slice(1200, 1500), slice(1500, None)

model = PATEClassifier(
    classes=[0, 1], epsilon=4, delta=1e-4, teachers=20, teacher=GaussianNB(), student="table"
)
cost = model.rehearse(images[public])  # from public rows; nothing private is read
print(f"fit will charge epsilon {cost.epsilon(delta=1e-4):.2f}")
model.fit(images[private], large[private], public=images[public])
print(f"labels paid for: {model.certificate_.plan['labels_answered']}")
print(f"right about {model.score(images[fresh], large[fresh]):.0%} of fresh digits")
