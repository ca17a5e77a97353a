"""The demonstration, step by step: train twice, attack both, audit one, certify."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet._files import new_directory
from discreet.demo._data import load
from discreet.demo._methods import METHODS, check_method

if TYPE_CHECKING:
    from discreet.attacks import MembershipResult
    from discreet.demo._data import DemoData
    from discreet.demo._methods import Method
    from discreet.report import InternalFacts, Utility

LEDGER = "demo.ledger"
TRAINED, HELD_OUT = "training", "held-out"
_SEED = 1
_ANSWER_EPSILON = "0.5"
_PRIVATE, _PLAIN = "private model", "plain twin"


@dataclass(frozen=True)
class Demonstration:
    """What the demonstration found, and what it wrote."""

    certificate: dict[str, Any]
    internal: InternalFacts
    files: dict[str, Path]

    def internal_figures(self) -> list[dict[str, Any]]:
        """Return one row for each model: how often it is right, and what the best attack finds."""
        from discreet.report import strongest_attack

        rows = []
        for attacked in self.internal.attacked:
            best = strongest_attack(attacked.results)
            point = next((one for one in best.operating_points() if one.asked_fpr == 0.01), None)
            right = {
                one.records: one.accuracy.share
                for one in self.internal.utility
                if one.model == attacked.model
            }
            found = None if point is None else point.tpr.share
            row = {"model": attacked.model, "accuracy": right, "attack": best.attack}
            rows.append({**row, "auc": best.auc, "tpr_at_fpr_1_percent": found})
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return what was promised, shown, paid for and found, and where it was written."""
        certificate = self.certificate
        shown = {
            "audits": ("method", "verdict", "epsilon_lower", "ceiling"),
            "answers": ("question", "value", "low", "high", "epsilon"),
        }
        listed = {
            name: [{key: one[key] for key in keys} for one in certificate[name]]
            for name, keys in shown.items()
        }
        return {
            "verdict": certificate["verdict"]["state"],
            "epsilon": certificate["guarantee"]["epsilon"],
            "delta": certificate["guarantee"]["delta"],
            **listed,
            "internal": self.internal_figures(),
            "files": {name: path.as_posix() for name, path in self.files.items()},
        }


class Steps:
    """Says what is being done, and how long it took."""

    def __init__(self, total: int, say: Callable[[str], None] | None) -> None:
        self._total = total
        self._say = say or (lambda _: None)
        self._done = 0

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """One step, announced before it runs."""
        self._done += 1
        started = time.monotonic()
        self._say(f"[{self._done}/{self._total}] {what} ...")
        yield
        self._say(f" {time.monotonic() - started:.1f} s\n")


def demonstrate(
    data: str = "digits",
    *,
    method: str = "dpsgd",
    schema: str | None = None,
    epsilon: float = 3.0,
    delta: float = 1e-5,
    out: str | Path = "discreet-demo",
    say: Callable[[str], None] | None = None,
) -> Demonstration:
    """Train with and without privacy, attack both models, audit the private one, certify it.

    Parameters
    ----------
    data
        One of ``SETS``, or the path of a CSV or Parquet file.
    method
        One of ``METHODS``.
    schema
        What is public about the file; only for a file.
    epsilon, delta
        What the private model may cost.
    out
        A directory to write to, which must not exist.
    say
        Is called with the text of each step, before it and after it.

    Returns
    -------
    Demonstration
        What was found, and the files.

    Raises
    ------
    InvalidValue
        If the data, the schema or the method cannot be used.

    """
    from discreet._threads import one_thread

    check_method(method)
    steps = Steps(7, say)
    with new_directory(out) as draft:
        with steps.step(f"data: {data}"):
            planned = METHODS[method](load(data, schema=schema), epsilon=epsilon, delta=delta)
        title = f"{planned.data.title}, {method}"
        with one_thread():
            done = _demonstrate(planned, draft, steps=steps, title=title)
    # The directory was written under another name and moved to its own.
    places = {name: Path(out) / path.relative_to(draft) for name, path in done.files.items()}
    return replace(done, files=places)


def _demonstrate(method: Method, place: Path, *, steps: Steps, title: str) -> Demonstration:
    from discreet.ledger import Ledger
    from discreet.report import (
        file_hashes,
        model_certificate,
        model_files,
        write_annex,
        write_certificate,
    )

    data = method.data
    everybody = np.arange(len(data.inside[1]))
    with steps.step("plain model, without privacy"):
        plain = method.plain(everybody, _SEED)
    with Ledger.create(place / LEDGER) as ledger:
        ledger.create_dataset(
            TRAINED,
            epsilon=_leave_room(method.epsilon),
            delta=2 * method.delta,
            reserved=method.delta,
            relation=method.relation,
            unit=data.unit,
        )
        ledger.create_dataset(HELD_OUT, epsilon=_ANSWER_EPSILON, unit=data.unit)
        with steps.step(f"private model by {method.name}, charged to a ledger, and its audit"):
            made = method.private(ledger, TRAINED)
            made.save(place / "public" / "model")
        private = _target(made.model, len(data.classes))
        with steps.step("accuracy on people outside, by a mechanism that is paid for"):
            answer = _paid_accuracy(data, private, ledger)
    targets = {_PRIVATE: private, _PLAIN: _target(plain, len(data.classes))}
    attacked = {}
    with steps.step(f"attacks on the plain model ({method.plain_shadows} shadow models)"):
        attacked[_PLAIN] = _attacks(
            data, targets[_PLAIN], method.plain_trainer, method.plain_shadows
        )
    with steps.step(f"attacks on the private model ({method.private_shadows} shadow models)"):
        attacked[_PRIVATE] = _attacks(
            data, targets[_PRIVATE], method.shadow, method.private_shadows
        )
    with steps.step("certificate"):
        model = place / "public" / "model"
        hashes = file_hashes(model, model_files(model))
        published = model_certificate(model).publish(
            title=title,
            files={f"model/{name}": digest for name, digest in hashes.items()},
            audits=made.audits,
            answers=(answer,),
            collection=data.collection,
        )
        certificate = published.to_json()
        internal = _internal(data, targets, attacked)
        with Ledger.open(place / LEDGER) as ledger:
            written = write_certificate(place, published, ledger=ledger)
        annex = write_annex(place, internal, certificate)
        _keep_plain(plain, place / "internal" / "plain-model")
    files = dict(zip(("json", "page", "annex_json", "annex_page"), (*written, *annex), strict=True))
    return Demonstration(certificate, internal, {**files, "ledger": place / LEDGER})


def _leave_room(epsilon: float) -> str:
    """A budget with a little room: the accountant's bracket has a width."""
    return repr(round(epsilon * 1.001, 9))


def _target(model: Any, classes: int) -> Any:
    from discreet.attacks import Target, as_target

    if isinstance(model, Target):
        return model
    if hasattr(model, "predict_proba"):
        return as_target(model.predict_proba, output="probabilities", classes=classes)
    return as_target(model, classes=classes)


def _paid_accuracy(data: DemoData, target: Any, ledger: Any) -> Any:
    """How often the model is right on the other half, from a noisy count.

    Those people are others than the ones that the model learned from: their loss is their own,
    and so is their budget.
    """
    from discreet.certificate import PaidAnswer
    from discreet.mechanisms import laplace_count
    from discreet.privacy import DiscreteLaplace

    loss = DiscreteLaplace(scale=2.0)
    with ledger.charge(HELD_OUT, loss, purpose="discreet demo: accuracy") as charge:
        right = int(np.sum(target.labels(data.outside[0]) == data.outside[1]))
        release = laplace_count(right, epsilon=_ANSWER_EPSILON)
        assert release.loss == loss
        receipt = charge.receipt()
    return PaidAnswer.of(
        release,
        question=f"share of right answers about {data.held_out} {data.unit}s outside the training",
        divided_by=data.held_out,
        receipt=receipt,
    )


def _attacks(data: DemoData, target: Any, train: Any, shadows: int) -> tuple[MembershipResult, ...]:
    from discreet import attacks
    from discreet.attacks import strongest_of_three

    seen = attacks.observe_split(
        target, members=data.inside, nonmembers=data.outside, overlap="allow"
    )
    records, labels = data.records, data.labels
    pool = attacks.ShadowPool(
        records,
        labels,
        train,
        models=shadows + shadows % 2,
        pairs=True,
        classes=len(data.classes),
        seed=_SEED,
    )
    return strongest_of_three(seen, pool)


def _internal(data: DemoData, targets: dict[str, Any], attacked: dict[str, Any]) -> InternalFacts:
    from discreet.report import Attacked, InternalFacts

    parts = {"training records": data.inside, "records outside": data.outside}
    utility = [
        _utility(model, records, targets[model], *parts[records])
        for model in (_PRIVATE, _PLAIN)
        for records in parts
    ]
    return InternalFacts(
        attacked=tuple(
            Attacked(model, model == _PRIVATE, attacked[model]) for model in (_PRIVATE, _PLAIN)
        ),
        utility=tuple(utility),
        class_names=data.classes,
    )


def _utility(model: str, records: str, target: Any, x: Any, y: Any) -> Utility:
    from discreet._confidence import proportion
    from discreet.report import Utility

    right = int(np.sum(target.labels(x) == y))
    return Utility(model=model, records=records, accuracy=proportion(right, len(y)))


def _keep_plain(plain: Any, place: Path) -> None:
    """Keep the twin among what is internal, if it is a network; a pickle is never written."""
    if not hasattr(plain, "state_dict"):
        return
    from safetensors.torch import save_file

    place.mkdir()
    tensors = {name: value.contiguous() for name, value in plain.state_dict().items()}
    save_file(tensors, str(place / "model.safetensors"))
