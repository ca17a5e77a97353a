"""Attack your own model: measure whether its answers give away who was in the training data.

Run it with `python examples/attack_model.py`; it needs the extra `tables`.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from discreet.attacks import ShadowPool, lira, observe_split, yeom

images, digits = load_digits(return_X_y=True)
inside, outside = slice(0, 500), slice(500, 1000)


def train(indices, seed):
    """Train a model as the target was trained; shadow models are trained with it, too."""
    forest = RandomForestClassifier(20, random_state=seed)
    return forest.fit(images[indices], digits[indices])


# Records that were used for training, and records of the same kind that were not.
seen = observe_split(
    train(np.arange(500), 0),
    members=(images[inside], digits[inside]),
    nonmembers=(images[outside], digits[outside]),
)
pool = ShadowPool(images[:1000], digits[:1000], train, models=16, seed=1)

for result in (yeom(seen), lira(seen, pool.run())):
    found = result.tpr_at(0.1)
    print(f"{result.attack}: {found.share:.0%} of members at 10 % false accusations", end=", ")
    print(f"between {found.low:.0%} and {found.high:.0%}")
