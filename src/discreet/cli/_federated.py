"""``discreet federated run | simulate``: plans of federated learning, with clients in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from discreet._rounding import at_most
from discreet.cli._app import Group, print_json, print_lines, printable
from discreet.cli._options import (
    ChargedLedger,
    Count,
    Real,
    insecure_seed_option,
    output_file,
    read_text,
)
from discreet.errors import FileUnusable, InvalidValue

if TYPE_CHECKING:
    from discreet.federated import Clients, Federated, FederatedPlan

_DAMAGED = (OSError, ValueError, KeyError, EOFError)


@click.group(cls=Group)
def federated() -> None:
    """Clients train, a server adds up, and the certificate says who was trusted.

    Examples:
      discreet federated simulate --epsilon 8 --plan plan.json
      discreet federated run plan.json --data clients.npz --out model
    """


@federated.command(short_help="Run a plan on clients of a file.")
@click.argument("plan", metavar="PLAN", help="The plan: JSON of a FederatedPlan.")
@click.option(
    "--data",
    metavar="FILE",
    required=True,
    help="Clients (.npz): inputs (clients x examples x features), targets and perhaps counts.",
)
@click.option("--out", metavar="DIRECTORY", required=True, help="Where to write the model.")
@click.option("--classes", type=Count(at_least=2), required=True, help="How many classes.")
@click.option("--hidden", type=Count(at_least=1), help="Units of a hidden layer.  [default: none]")
@click.option("--local-steps", type=Count(at_least=1), default="1", help="Steps of a client.")
@click.option("--local-rate", type=Real(above=0), default="0.5", help="Its learning rate.")
@click.option("--server-rate", type=Real(above=0), default="1", help="That of the server.")
@click.option("--checkpoint", metavar="DIRECTORY", help="Resume a killed run by the same command.")
@click.option("--ledger", metavar="LEDGER", help="Charge this ledger before a client is asked.")
@click.option("--dataset", metavar="NAME", help="The dataset to charge in the ledger.")
@insecure_seed_option
def run(
    plan: str,
    data: str,
    out: str,
    classes: int,
    hidden: int | None,
    local_steps: int,
    local_rate: float,
    server_rate: float,
    checkpoint: str | None,
    ledger: str | None,
    dataset: str | None,
    insecure_seed: int | None,
    as_json: bool,
) -> None:
    """Run a plan with clients in memory, and write the model with its certificate.

    Everything that the loss depends on is in the plan. It is charged before a client is asked; with
    a checkpoint it is charged once, and no round is taken twice.

    Examples:
      discreet federated run plan.json --data clients.npz --classes 10 --out model
    """
    from discreet.federated import FederatedPlan, Training

    asked = FederatedPlan.from_json(read_text("plan", plan))
    clients = _read_clients(data)
    charged = ChargedLedger(ledger, dataset)
    charged.check()
    training = Training(local_steps=local_steps, local_rate=local_rate, server_rate=server_rate)
    with charged.open() as book:
        done = _engine(clients, classes, hidden, training).run(
            asked,
            ledger=book,
            dataset=dataset,
            checkpoint=checkpoint,
            insecure_seed=insecure_seed,
        )
    done.save(out)
    _print_done(asked, done, as_json=as_json, out=out)


@federated.command(short_help="Try a plan on pictures of digits.")
@click.option(
    "--trust",
    metavar="server|aggregation|shuffler|nobody",
    default="server",
    help="Who is trusted.",
)
@click.option("--epsilon", type=Real(above=0), required=True, help="The epsilon to spend.")
@click.option("--delta", type=Real(above=0, below=1), default="1e-4", help="The delta to spend.")
@click.option("--clients", type=Count(at_least=2, at_most=700), default="500", help="How many.")
@click.option("--cohort", type=Count(at_least=1), default="100", help="Clients in a round.")
@click.option("--rounds", type=Count(at_least=1), default="30", help="How many rounds.")
@click.option("--clip", type=Real(above=0), default="1", help="The largest length of an update.")
@click.option(
    "--participations",
    type=Count(at_least=1),
    help="Rounds of a client at most, unless the server is trusted.  [default: as few as fit]",
)
@click.option("--plan", metavar="FILE", help="Write the plan, with another dimension perhaps.")
@insecure_seed_option
def simulate(
    trust: str,
    epsilon: float,
    delta: float,
    clients: int,
    cohort: int,
    rounds: int,
    clip: float,
    participations: int | None,
    plan: str | None,
    insecure_seed: int | None,
    as_json: bool,
) -> None:
    """Run a plan on the public pictures of digits that scikit-learn has, two for each client.

    The accuracy is on pictures that no client has. It says what such a plan may do, with so few
    clients, and not what it will do on other data.

    Examples:
      discreet federated simulate --epsilon 8
      discreet federated simulate --epsilon 8 --trust aggregation --rounds 10
    """
    import numpy as np
    import torch
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    from discreet.federated import TRUSTS, Clients, FederatedPlan, Training, split_dirichlet

    if trust not in TRUSTS:
        raise InvalidValue("trust", trust, f"one of {', '.join(TRUSTS)}")
    digits = load_digits()
    x = torch.from_numpy((digits.data / 16.0).astype(np.float32))
    y = torch.from_numpy(digits.target.astype(np.int64))
    rows = split_dirichlet(y[:1400].numpy(), clients=clients, examples=2, alpha=10.0, seed=1)
    engine = _engine(Clients(x[rows], y[rows]), 10, None, Training(local_rate=1.0, momentum=0.5))
    given: dict[str, Any] = {}
    if trust != "server":
        fewest = -(-cohort * rounds // clients)
        # Rounded up by one: cohorts are drawn among those who may still take part.
        given = {
            "dimension": engine.size,
            "participations": min(rounds, fewest + 1) if participations is None else participations,
        }
    if trust in ("aggregation", "shuffler"):
        given["threshold"] = min(cohort, -(-4 * cohort // 5))
    made = FederatedPlan(
        trust=trust, clients=clients, expected_cohort=cohort, rounds=rounds, clip_norm=clip,
        delta=delta, epsilon=epsilon, **given,
    )  # fmt: skip
    if plan is not None:
        with output_file(plan, ".json", argument="plan") as draft:
            assert draft is not None
            draft.write_text(json.dumps(made.to_json(), indent=2) + "\n", encoding="utf-8")
    done = engine.run(made, validation=(x[1400:], y[1400:]), insecure_seed=insecure_seed)
    _print_done(made, done, as_json=as_json, plan=plan)


def _engine(clients: Clients, classes: int, hidden: int | None, training: Any) -> Any:
    from math import prod

    import torch
    from torch import nn

    from discreet.federated import InProcessEngine

    width = prod(clients.inputs.shape[2:])
    layers: list[nn.Module] = [nn.Flatten(0 if clients.inputs.ndim < 3 else 1)]
    if hidden is not None:
        layers += [nn.Linear(width, hidden), nn.Tanh()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # where a model starts is public
        model = nn.Sequential(*layers, nn.Linear(hidden or width, classes))
    return InProcessEngine(clients, model, nn.CrossEntropyLoss(reduction="none"), training)


def _read_clients(data: str) -> Clients:
    """Read clients from a file of plain arrays; nothing in it is executed."""
    import numpy as np
    import torch

    from discreet.federated import Clients

    expected = "a file .npz with inputs (clients x examples x features) and targets"
    try:
        with np.load(data, allow_pickle=False) as file:
            inputs, targets = file["inputs"], file["targets"]
            counts = file["counts"] if "counts" in file.files else None
        shaped = inputs.ndim >= 3 and inputs.dtype.kind in "biuf" and targets.dtype.kind in "iu"
    except _DAMAGED as error:
        raise FileUnusable("data", data, f"{expected} ({type(error).__name__})") from None
    if not shaped:
        raise FileUnusable("data", data, expected)
    return Clients(
        torch.from_numpy(inputs.astype(np.float32)),
        torch.from_numpy(targets.astype(np.int64)),
        counts,
    )


def _print_done(
    made: FederatedPlan, done: Federated, *, as_json: bool, **files: str | None
) -> None:
    stated = done.certificate
    found = done.history[-1].get("accuracy") if done.history else None
    if as_json:
        print_json(
            {
                "trust": made.trust,
                "loss": repr(made.loss),
                "epsilon": stated.epsilon,
                "delta": stated.delta,
                "relation": stated.relation,
                "unit": stated.unit,
                "rounds": made.rounds,
                "accuracy": found,
                "charged": stated.receipt is not None,
                **files,
            }
        )
        return
    cost = f"epsilon {at_most(stated.epsilon)} at delta {at_most(stated.delta)}"
    lines = [
        f"trust in {made.trust}: {made.loss!r}",
        f"guarantee: {cost} for one {stated.unit} ({stated.relation})",
        *(f"right on public pictures: {100 * one:.1f} %" for one in (found,) if one is not None),
        *(f"WARNING: {one}" for one in stated.warnings),
        *(f"written: {one}" for one in files.values() if one is not None),
    ]
    print_lines(map(printable, lines))
