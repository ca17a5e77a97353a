"""Release a synthetic table, and count values that people randomize themselves.

Run it with `python examples/synthesize.py`; it needs the extra `tables`.
"""

import numpy as np

from discreet.data import Categorical, Integer, Schema
from discreet.local import FrequencyOracle
from discreet.synth import OneShot

# A curator is trusted with the rows: one model is paid for, any number of rows is drawn from it.
schema = Schema(
    {"age": Integer(17, 90), "ill": Categorical(["yes", "no"], other="no")},
    target="ill",
    expected_rows=2_000,
)
draw = np.random.default_rng(0)
age = draw.integers(17, 91, 2_000)
records = {"age": age, "ill": np.where(draw.random(2_000) < age / 150, "yes", "no")}

plan = OneShot().plan(schema, epsilon=1, delta=1e-6)
model = plan.run(records)
rows = model.sample()
ill = np.asarray(rows["ill"].to_pylist()) == "yes"
print(f"of {rows.num_rows} synthetic rows {ill.mean():.0%} are ill; of the records", end=" ")
print(f"{np.mean(records['ill'] == 'yes'):.0%}")

# No one is trusted: each person randomizes her value, and only the report leaves her phone.
oracle = FrequencyOracle(["bus", "car", "bicycle", "on foot"], epsilon=1)
collector = oracle.server()
ways = ["bus"] * 5_000 + ["car"] * 3_000 + ["bicycle"] * 2_000
collector.aggregate(oracle.client().randomize(way) for way in ways)
found = collector.estimate()
low, high = found.interval(confidence=0.95)
for way, least, most in zip(oracle.domain.labels, low, high, strict=True):
    print(f"{way}: between {max(least, 0):.0%} and {min(most, 1):.0%}")
