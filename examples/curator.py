"""Answer questions about a private table, each with its price, error bars and receipt.

Run it with `python examples/curator.py`; it needs the extra `curator`.
"""

import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np

from discreet.curator import Count, CuratedDataset, Curator, Mean
from discreet.data import Categorical, Integer, Real, Schema
from discreet.engines import Compare, Field, Value
from discreet.ledger import Ledger

schema = Schema(
    {"age": Integer(0, 120), "city": Categorical(["Oslo", "Bergen"]), "spend": Real(0, 1000)},
    person="who",
    rows_per_person=3,
    expected_rows=6000,
)
draw = np.random.default_rng(1)
visits = {
    "who": draw.integers(0, 2000, 6000),
    "age": draw.integers(18, 80, 6000),
    "city": np.array(["Oslo", "Bergen"], dtype=object)[draw.integers(0, 2, 6000)],
    "spend": draw.gamma(2.0, 50.0, 6000),
}

with tempfile.TemporaryDirectory() as folder:
    ledger = Ledger.create(Path(folder) / "study.ledger")
    ledger.create_dataset("visits", epsilon=3, unit="person")
    dataset = CuratedDataset("visits", schema=schema, source=visits)
    with closing(ledger), closing(dataset):
        curator = Curator(ledger, {"visits": dataset})

        young = Count(epsilon="1/10", where=Compare("<", Field("age"), Value(30)))
        price = curator.quote("visits", young)  # from public facts; nothing is read or charged
        print(f"the count will cost {price.loss} and be off by at most", end=" ")
        print(f"{price.expected_error[0].half_width} in 95 of 100 cases")

        for query in (young, Mean(Field("spend"), epsilon=1)):
            answer = curator.ask("visits", query, analyst="ann")
            bars = answer.errors[0]
            print(f"{answer.value:.1f}, between {bars.low:.1f} and {bars.high:.1f}: {answer.about}")
        print("left of epsilon:", ledger.show("visits").budget.remaining["basic"])
