"""The usual rows of the bench, for records at hand: networks of one hidden layer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from discreet.defences._canaries import NearDuplicates
from discreet.defences._contract import Defence
from discreet.defences._networks import NetworkTraining
from discreet.defences._outputs import LabelOnly, MemGuard, RandomScores, Rounded
from discreet.defences._private import PateTraining, PrivateTraining, SyntheticTraining
from discreet.defences._selena import Selena

if TYPE_CHECKING:
    from collections.abc import Sequence

    from discreet.defences._bench import BenchData

QUICK = (
    *("none", "MemGuard", "label-only output"),
    *("early stopping", "DP-SGD, epsilon 8", "DP-SGD, vacuous epsilon"),
)
_DEAR = 16


def standard_defences(
    data: BenchData,
    *,
    hidden: int = 128,
    epochs: int = 40,
    canaries: int = 500,
    delta: float = 1e-5,
    categories: Sequence[int] = (),
    quick: bool = False,
) -> tuple[Defence, ...]:
    """Return the usual rows: none, and defences in training and at the output.

    Parameters
    ----------
    data : BenchData
        The records of the bench; its reference is what defenders compare members with.
    hidden, epochs : int
        Of every network.
    canaries : int
        How many canaries are made against a defence that has a kind of its own.
    delta : float
        Where epsilon is read.
    categories : sequence of int
        If records are answers to questions, as bits of which one in each group is 1: the sizes of
        the groups. There is then a row for training on synthetic records.
    quick : bool
        Six of them only.

    Returns
    -------
    tuple of Defence
        For :class:`DefenceBench`.
    """
    kinds = {"classes": data.classes, "hidden": hidden, "epochs": epochs}

    def network(**settings: Any) -> NetworkTraining:
        return NetworkTraining(**(kinds | settings))

    def private(**settings: Any) -> PrivateTraining:
        size = min(512, len(data.records) // 2)
        return PrivateTraining(
            data.classes,
            len(data.records),
            hidden=hidden,
            delta=delta,
            expected_batch_size=size,
            **settings,
        )

    outside = (data.reference_records, data.reference_labels)
    kept = {
        name: Defence(name, "training", train)
        for name, train in {
            "weight decay": network(weight_decay=3e-4),
            "early stopping": network(epochs=max(1, epochs // 5)),
            "dropout": network(dropout=0.5),
            "label smoothing": network(smoothing=0.2),
            "adversarial regularisation": network(adversary=3.0, reference=outside),
            "RelaxLoss": network(relax=min(0.8, math.log(data.classes) / 2)),
        }.items()
    }
    hamp = Defence("HAMP", "training", network(entropy=0.6), answer=RandomScores())
    selena = Defence(
        "SELENA",
        "training",
        Selena(network()),
        trainings=26,
        models=_DEAR,
        canaries=NearDuplicates(canaries),
    )
    proved = {
        "DP-SGD, epsilon 1": private(epsilon=1.0, learning_rate=1.0),
        "DP-SGD, epsilon 8": private(epsilon=8.0),
        "DP-SGD, epsilon 100": private(epsilon=100.0),
        "DP-SGD, vacuous epsilon": private(noise_multiplier=0.01),
    }
    voted = PateTraining(
        data.classes, data.reference_records, delta=delta, teachers=max(2, len(data.records) // 200)
    )
    dear = [
        Defence(
            "PATE, epsilon 8",
            "training",
            voted,
            loss=voted.loss,
            delta=delta,
            trainings=voted.teachers + 1,
            models=_DEAR,
            repeats=False,
        )
    ]
    if categories:
        drawn = SyntheticTraining(network(), tuple(categories), delta=delta)
        dear.append(
            Defence(
                "synthetic records, epsilon 8",
                "data",
                drawn,
                loss=drawn.loss,
                delta=delta,
                models=_DEAR,
                repeats=False,
            )
        )
    rows = [
        Defence("none", "none", network()),
        Defence("MemGuard", "output", answer=MemGuard()),
        Defence("label-only output", "output", answer=LabelOnly()),
        Defence("rounding and top-3", "output", answer=Rounded()),
        *kept.values(),
        hamp,
        selena,
        *(
            Defence(name, "training", train, loss=train.loss, delta=delta, repeats=False)
            for name, train in proved.items()
        ),
        *dear,
    ]
    return tuple(row for row in rows if not quick or row.name in QUICK)
