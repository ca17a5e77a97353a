"""How the demonstration trains: the private model, its plain twin, and shadows of both.

The audit of DP-SGD is one of the very run that is released: canaries own coordinates of their own
beside the model, so that they take part in sampling, clipping and noise without moving a weight.
Learners that train in milliseconds are run a thousand times on made-up neighbours instead, chosen
so that the learner has no hiding place: the audit says what they were. Either way no private record
enters an audit.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.audit import TrainingAudit
    from discreet.demo._data import DemoData
    from discreet.ledger import Ledger

# Beyond so many records fewer shadow models are trained, for a shorter time.
_MANY = 4000


@dataclass(frozen=True)
class Made:
    """A private model, and how to save it."""

    model: Any
    save: Callable[[Path], None]
    audits: tuple[TrainingAudit, ...]


@dataclass(frozen=True)
class Neighbours:
    """Made-up neighbours for an audit by many runs, in words and as (records, labels)."""

    what: str
    included: tuple[Any, Any]
    excluded: tuple[Any, Any]
    score: Callable[[Any], float]


class Method(ABC):
    """A way to learn privately, with what it takes to examine it."""

    name: ClassVar[str]
    relation: ClassVar[str] = "add_remove"
    plain_shadows = 32
    private_shadows = 16

    def __init__(self, data: DemoData, *, epsilon: float, delta: float) -> None:
        self.data = data
        self.epsilon = epsilon
        self.delta = delta
        if data.planned > _MANY:
            self.plain_shadows, self.private_shadows = 16, 8

    @abstractmethod
    def private(self, ledger: Ledger, dataset: str) -> Made:
        """Charge, train and audit."""

    @abstractmethod
    def plain(self, indices: NDArray[Any], seed: int) -> Any:
        """Train the twin without privacy on records of both halves, by their numbers."""

    @abstractmethod
    def shadow(self, indices: NDArray[Any], seed: int) -> Any:
        """Train as :meth:`private` does, with noise from a seed: it protects nobody."""

    @property
    def plain_trainer(self) -> Callable[..., Any]:
        """What the pool of plain shadows calls."""
        return self.plain


@final
class GradientDescent(Method):
    """DP-SGD on a small network."""

    name = "dpsgd"
    _canaries = 1000

    def __init__(self, data: DemoData, *, epsilon: float, delta: float) -> None:
        from discreet.attacks import NetworkTrainer, Perceptron
        from discreet.learn.dpsgd import Plan

        super().__init__(data, epsilon=epsilon, delta=delta)
        size = data.planned
        self._network = Perceptron(data.columns, len(data.classes), hidden=(32,))
        self._plan = Plan(
            examples=size,
            expected_batch_size=min(size, max(300, size // 10)),
            steps=120 if size <= _MANY else 200,
            clip_norm=1.0,
            epsilon=epsilon,
            delta=delta,
            unit=data.unit,
        )
        wide = Perceptron(data.columns, len(data.classes), hidden=(128,))
        epochs = 60 if size <= _MANY else 10
        self._twin = NetworkTrainer(
            data.records, data.labels, wide, epochs=epochs, learning_rate=1e-2
        )

    def private(self, ledger: Ledger, dataset: str) -> Made:
        """Train with 1,000 gradient canaries, half of them included, and audit that run."""
        from torch import nn

        from discreet.audit import Inclusion, audit_one_run, suggest_guesses
        from discreet.learn.dpsgd import Trainer, save
        from discreet.learn.dpsgd.canaries import GradientCanaries

        plan = self._plan
        guesses = suggest_guesses(plan.loss, canaries=self._canaries, delta=plan.delta)
        coins = Inclusion(self._canaries, guesses=guesses)
        model = self._network()
        loss = nn.CrossEntropyLoss(reduction="none")
        marked = GradientCanaries(
            model, _tensors(*self.data.inside), plan, included=coins.included, loss=loss
        )
        steps = _optimizer(marked.model.parameters())
        marked.watch(steps)
        trainer = Trainer(
            marked.model, plan, optimizer=steps, losses=marked.losses, inputs=marked.inputs
        )
        trained = trainer.fit(
            marked.dataset,
            ledger=ledger,
            dataset_name=dataset,
            purpose="discreet demo: a model by DP-SGD",
            progress=False,
        )
        audit = audit_one_run(coins, marked.scores(), loss=plan.loss, delta=plan.delta)
        model.eval()

        def keep(place: Path) -> None:
            save(place, model, trained.certificate)

        return Made(model, keep, (audit,))

    def plain(self, indices: NDArray[Any], seed: int) -> Any:
        return self._twin(indices, seed)

    @property
    def plain_trainer(self) -> Callable[..., Any]:
        return self._twin

    def shadow(self, indices: NDArray[Any], seed: int) -> Any:
        import torch
        from torch import nn

        from discreet.learn.dpsgd import Trainer
        from discreet.randomness import source

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._network()
        trainer = Trainer(
            model,
            self._plan,
            optimizer=_optimizer,
            loss=nn.CrossEntropyLoss(reduction="none"),
            isolation="vouched",
            source=source(insecure_seed=seed),
        )
        records = _tensors(self.data.records[indices], self.data.labels[indices])
        trainer.fit(records, progress=False)
        return model


class _Estimated(Method):
    """A learner in the style of scikit-learn, fast enough to be run hundreds of times."""

    _runs = 500
    _most_columns = 64

    @abstractmethod
    def _estimator(self, seed: int | None = None, *, audited: bool = False) -> Any:
        """An unfitted private estimator; ``audited`` for the made-up rows of an audit."""

    @abstractmethod
    def _twin(self) -> Any:
        """An unfitted estimator without privacy."""

    @abstractmethod
    def _neighbours(self) -> Neighbours:
        """Made-up data with and without a canary, and what to look at in a fitted model."""

    def private(self, ledger: Ledger, dataset: str) -> Made:
        """Train, and audit the same learner by many runs on made-up neighbours."""
        model = self._fit(self._estimator(), *self.data.inside, ledger=ledger, dataset=dataset)

        def keep(place: Path) -> None:
            place.mkdir(parents=True)
            model.save(place / "model.npz")
            text = json.dumps(model.certificate_.to_json(), indent=2)
            (place / "certificate.json").write_text(text + "\n", encoding="utf-8")

        return Made(model, keep, self._audits())

    def _audits(self) -> tuple[TrainingAudit, ...]:
        from discreet.audit import audit_gaussian, audit_runs

        made_up = self._neighbours()
        scores = [
            [made_up.score(self._estimator(audited=True).fit(*rows)) for _ in range(self._runs)]
            for rows in (made_up.included, made_up.excluded)
        ]
        # The claim is that of the learner on the made-up data: same budget, same calibration.
        probe = self._estimator(audited=True).fit(*made_up.excluded).certificate_
        try:
            audit = audit_gaussian(
                *scores, loss=probe.loss, delta=probe.delta, mechanism="gaussian"
            )
        except NotApplicable:
            audit = audit_runs(*scores, epsilon=probe.epsilon, delta=probe.delta)
        return (replace(audit, evidence={"audited": made_up.what, **audit.evidence}),)

    @property
    def _audited_columns(self) -> int:
        """How many columns the made-up rows have: a thousand fits must not take long."""
        return min(self.data.columns, self._most_columns)

    def _fit(self, estimator: Any, records: Any, labels: Any, **keywords: Any) -> Any:
        # One row is one unit here, whatever the ledger calls it.
        named = {"unit": self.data.unit} if "ledger" in keywords else {}
        return estimator.fit(records, labels, **keywords, **named)

    def plain(self, indices: NDArray[Any], seed: int) -> Any:
        return self._as_target(
            self._twin().fit(self.data.records[indices], self.data.labels[indices])
        )

    def shadow(self, indices: NDArray[Any], seed: int) -> Any:
        records, labels = self.data.records[indices], self.data.labels[indices]
        return self._as_target(self._fit(self._estimator(seed), records, labels))

    def _as_target(self, fitted: Any) -> Any:
        from discreet.attacks import as_target

        return as_target(
            fitted.predict_proba, output="probabilities", classes=len(self.data.classes)
        )


@final
class NaiveBayes(_Estimated):
    """Naive Bayes from noisy moments."""

    name = "naive_bayes"

    def _estimator(self, seed: int | None = None, *, audited: bool = False) -> Any:
        from discreet.learn import PrivateGaussianNB

        return PrivateGaussianNB(
            epsilon=self.epsilon,
            delta=self.delta,
            classes=list(range(len(self.data.classes))),
            bounds=(0.0, 1.0),
            insecure_seed=seed,
        )

    def _twin(self) -> Any:
        from sklearn.naive_bayes import GaussianNB  # type: ignore[import-untyped]

        return GaussianNB(var_smoothing=1e-3)

    def _neighbours(self) -> Neighbours:
        """Return a canary in a corner, and enough rows in the middle that nothing is cut off.

        It moves one of the three soft bins of every column by a whole record. The count of its
        class and the distance of the means from the middle are sums over the bins with noise that
        is independent; weighted by their variances they tell 0.91 of what all bins tell.
        """
        count, columns = len(self.data.classes), self._audited_columns
        records = np.full((100 * count, columns), 0.5)
        labels = np.tile(np.arange(count), 100)

        def score(fitted: Any) -> float:
            size = float(fitted.class_count_[0])
            return columns * size / 3 + size * float(np.sum(fitted.theta_[0] - 0.5))

        return Neighbours(
            f"the same learner on {len(records)} made-up rows of {columns} columns, with and "
            "without a row in a corner of the bounds",
            (np.concatenate([records, np.ones((1, columns))]), np.append(labels, 0)),
            (records, labels),
            score,
        )


@final
class ProjectedDescent(_Estimated):
    """Private projected SGD, for two classes."""

    name = "projected_sgd"
    relation = "replace"
    _steps = 200_000

    def __init__(self, data: DemoData, *, epsilon: float, delta: float) -> None:
        super().__init__(data.in_two_classes(), epsilon=epsilon, delta=delta)

    def _estimator(self, seed: int | None = None, *, audited: bool = False) -> Any:
        from discreet.learn.projected_sgd import PrivateProjectedSGDClassifier

        return PrivateProjectedSGDClassifier(
            epsilon=self.epsilon,
            delta=self.delta,
            classes=[0, 1],
            # Rows have entries in [0, 1]; longer ones are shortened.
            feature_norm=self._longest,
            # The gradient of the hinge is as large as the noise is made for.
            loss="hinge" if audited else "logistic",
            steps=2 if audited else min(self.data.planned**2, self._steps),
            insecure_seed=seed,
        )

    def _twin(self) -> Any:
        from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

        return LogisticRegression(C=100.0, max_iter=2000)

    @property
    def _longest(self) -> float:
        return max(1.0, 0.5 * math.sqrt(self.data.columns))

    def _neighbours(self) -> Neighbours:
        """One row, twice: in every step it is drawn, and its label turns the whole gradient."""
        columns = self._audited_columns
        row = np.full((1, columns), self._longest / math.sqrt(columns))

        def score(fitted: Any) -> float:
            return float(fitted.decision_function(row)[0])

        return Neighbours(
            f"the same learner with the hinge loss, two steps on one made-up row of {columns} "
            "columns with either label: gradients, noise and projection, not the draw of rows",
            (row, np.array([1])),
            (row, np.array([0])),
            score,
        )


@final
class Teachers(_Estimated):
    """PATE: teachers on parts of the records, a student on public ones.

    It wants thousands of records; on the digits it shows why. What is audited are the votes: the
    same plan, on made-up votes that are tied but for one teacher, who changes sides.
    """

    name = "pate"

    def __init__(self, data: DemoData, *, epsilon: float, delta: float) -> None:
        super().__init__(data.with_unlabelled(), epsilon=epsilon, delta=delta)
        self.plain_shadows, self.private_shadows = 16, 8

    def _estimator(self, seed: int | None = None, *, audited: bool = False) -> Any:
        from discreet.pate import PATEClassifier

        return PATEClassifier(
            epsilon=self.epsilon,
            delta=self.delta,
            classes=list(range(len(self.data.classes))),
            teachers=self._teachers,
            insecure_seed=seed,
        )

    def _fit(self, estimator: Any, records: Any, labels: Any, **keywords: Any) -> Any:
        named = {"public": self.data.unlabelled, **keywords}
        return super()._fit(estimator, records, labels, **named)

    def _twin(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=100.0, max_iter=2000)

    @property
    def _teachers(self) -> int:
        return min(250, max(20, self.data.planned // 22))

    def _audits(self) -> tuple[TrainingAudit, ...]:
        from discreet.audit import audit_runs
        from discreet.pate import plan_votes
        from discreet.randomness import source

        assert self.data.unlabelled is not None
        plan = plan_votes(
            "auto",
            epsilon=self.epsilon,
            delta=self.delta,
            classes=len(self.data.classes),
            teachers=self._teachers,
            public_rows=len(self.data.unlabelled),
        )

        def score(first: int) -> float:
            """By how many answers the first class is ahead of the second."""
            votes = [first, self._teachers - first] + [0] * (len(self.data.classes) - 2)
            answers = plan.open(source()).answer_many([votes] * plan.queries)
            return float(answers.count(0) - answers.count(1))

        half = self._teachers // 2
        scores = [[score(first) for _ in range(self._runs)] for first in (half + 1, half)]
        # The claim is what the plan costs, which may be a little less than what was to be spent.
        audit = audit_runs(*scores, loss=plan.loss, delta=self.delta)
        what = (
            f"the same plan of {plan.queries} queries on made-up votes of {self._teachers} "
            "teachers, tied but for one of them, who votes for either class in all queries"
        )
        return (replace(audit, evidence={"audited": what, **audit.evidence}),)

    def _neighbours(self) -> Neighbours:
        raise NotApplicable("PATE is audited by its votes, not by runs on made-up records")


class _RowsThenModel:
    """A classifier of synthetic rows; what is private and certified is the model of the rows."""

    def __init__(self, plan: Any, seed: int | None) -> None:
        self.plan = plan
        self.seed = seed

    def fit(self, records: Any, labels: Any, **paid: Any) -> _RowsThenModel:
        """Learn the table, draw rows and learn from them."""
        from sklearn.linear_model import LogisticRegression

        *features, target = self.plan.schema.columns
        table: dict[str, Any] = {name: records[:, at] for at, name in enumerate(features)}
        rows = self.plan.run({**table, target: labels.astype(str)}, insecure_seed=self.seed, **paid)
        made = rows.sample(seed=self.seed)
        x = np.stack([made.column(name).to_numpy() for name in features], axis=1)
        y = np.array(made.column(target).to_pylist(), dtype=np.int64)
        # A class that no row has, which the noise may do to a rare one, gets one in the middle.
        lost = np.setdiff1d(np.arange(len(self.plan.schema.columns[target].categories)), y)
        x = np.concatenate([x, np.full((lost.size, x.shape[1]), 0.5)])
        self.model_ = rows
        self.certificate_ = rows.certificate_
        self.learned_ = LogisticRegression(C=1.0, max_iter=500).fit(x, np.append(y, lost))
        return self

    def predict_proba(self, records: Any) -> Any:
        """Return the probabilities of the classes, of those that were drawn."""
        return self.learned_.predict_proba(records)

    def save(self, place: Path) -> None:
        """Write the model of the rows."""
        self.model_.save(place)


@final
class Synthesis(_Estimated):
    """Synthetic rows, and a linear classifier that learns from them.

    What is audited is the noise of the plan: a record whose cells are empty moves every histogram,
    distance and table as far as it can.
    """

    name = "synthesize"
    _noises = 100_000
    _bins = 8

    def __init__(self, data: DemoData, *, epsilon: float, delta: float) -> None:
        from discreet.data import Categorical, Real, Schema
        from discreet.synth import OneShot

        super().__init__(data, epsilon=epsilon, delta=delta)
        self.plain_shadows, self.private_shadows = 16, 8
        names = [f"feature {at}" for at in range(data.columns)]
        classes = [str(at) for at in range(len(data.classes))]
        schema = Schema(
            {**{name: Real(0, 1) for name in names}, "class": Categorical(classes, other="0")},
            target="class",
            expected_rows=data.planned,
        )
        how = OneShot(bins=dict.fromkeys(names, self._bins), evaluations=200)
        self._plan = how.plan(schema, epsilon=epsilon, delta=delta)

    def _estimator(self, seed: int | None = None, *, audited: bool = False) -> Any:
        del audited
        return _RowsThenModel(self._plan, seed)

    def _twin(self) -> Any:
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=100.0, max_iter=2000)

    def _audits(self) -> tuple[TrainingAudit, ...]:
        from discreet.audit import audit_gaussian
        from discreet.synth import canary_scores

        scores = canary_scores(self._plan, runs=self._noises)
        audit = audit_gaussian(
            *scores,
            loss=self._plan.loss,
            delta=self.delta,
            mechanism="gaussian",
            thresholds=self._plan.gaussian.loss.mu**2 / 2,
            false_alarm_rate=1e-6,
        )
        what = (
            f"the noise of the same plan, {self._noises} times with a made-up row whose cells are "
            "empty in every table, and as often without it"
        )
        return (replace(audit, evidence={"audited": what, **audit.evidence}),)

    def _neighbours(self) -> Neighbours:
        raise NotApplicable("a synthesis is audited by its noise, not by runs on made-up records")


@final
class Federation(Method):
    """A federated run with a trusted server, in which every record is a client of its own.

    What is audited is what all rounds do to one client that sends as much as it can.
    """

    name = "federated"
    plain_shadows, private_shadows = 16, 8
    _rounds, _runs = 60, 500

    def __init__(self, data: DemoData, *, epsilon: float, delta: float) -> None:
        from discreet.attacks import NetworkTrainer, Perceptron
        from discreet.federated import FederatedPlan

        data = replace(data, unit="client")
        super().__init__(data, epsilon=epsilon, delta=delta)
        self._network = Perceptron(data.columns, len(data.classes), hidden=(32,))
        size = data.planned
        self._plan = FederatedPlan(
            clients=size,
            expected_cohort=min(size, max(300, size // 10)),
            rounds=self._rounds,
            clip_norm=1.0,
            epsilon=epsilon,
            delta=delta,
            unit=data.unit,
        )
        wide = Perceptron(data.columns, len(data.classes), hidden=(128,))
        self._twin = NetworkTrainer(
            data.records, data.labels, wide, epochs=60 if size <= _MANY else 10, learning_rate=1e-2
        )

    def _run(self, records: Any, labels: Any, **settings: Any) -> Any:
        import torch
        from torch import nn

        from discreet.federated import Clients, InProcessEngine, Training

        # As many clients as the plan says, whatever the number of records: the rest have nothing.
        size = self._plan.clients
        count = min(size, len(records))
        inputs = np.zeros((size, 1, records.shape[1]), dtype=records.dtype)
        targets = np.zeros((size, 1), dtype=np.int64)
        inputs[:count, 0], targets[:count, 0] = records[:count], np.asarray(labels)[:count]
        here = (np.arange(size) < count).astype(np.int64)
        clients = Clients(torch.from_numpy(inputs), torch.from_numpy(targets), here)
        engine = InProcessEngine(
            clients,
            settings.pop("model", None) or self._network(),
            nn.CrossEntropyLoss(reduction="none"),
            Training(local_rate=1.0, server_rate=2.0, momentum=0.5, decay=0.1),
        )
        return engine.run(self._plan, progress=False, **settings)

    def private(self, ledger: Ledger, dataset: str) -> Made:
        """Train, and audit the rounds of the same noise on made-up updates."""
        done = self._run(
            *self.data.inside, ledger=ledger, dataset=dataset,
            purpose="discreet demo: a federated model",
        )  # fmt: skip

        def keep(place: Path) -> None:
            place.parent.mkdir(parents=True, exist_ok=True)
            done.save(place)

        return Made(done.model, keep, (self._audit(),))

    def _audit(self) -> TrainingAudit:
        from discreet.audit import audit_runs

        scores = [[self._score(inside) for _ in range(self._runs)] for inside in (True, False)]
        audit = audit_runs(*scores, loss=self._plan.loss, delta=self.delta)
        what = (
            f"all rounds of the plan, {self._runs} times with a made-up client that sends an "
            "update of length 10^9 whenever it is drawn, and as often without it"
        )
        return replace(audit, evidence={"audited": what, **audit.evidence})

    def _score(self, inside: bool) -> float:
        """Return the log likelihood ratio of what one run shows about the made-up client."""
        from discreet.federated import Round
        from discreet.randomness import bernoulli

        plan = self._plan
        rate = plan.expected_cohort / plan.clients
        drawn = bernoulli(rate, plan.rounds) if inside else np.zeros(plan.rounds, dtype=bool)
        seen = []
        for number in range(plan.rounds):
            one = Round(plan, number, size=1, asked=(0,))
            if drawn[number]:
                one.receive(0, {"update": np.array([1e9])})
            seen.append(float(one.finish().update[0]) * plan.denominator / plan.clip_norm)
        sigma = plan.noise_multiplier
        assert sigma is not None  # the server is trusted
        gains = (np.array(seen) - 0.5) / sigma**2
        with np.errstate(divide="ignore"):  # at a rate of 1
            return float(np.sum(np.logaddexp(np.log1p(-rate), np.log(rate) + gains)))

    def plain(self, indices: NDArray[Any], seed: int) -> Any:
        return self._twin(indices, seed)

    @property
    def plain_trainer(self) -> Callable[..., Any]:
        return self._twin

    def shadow(self, indices: NDArray[Any], seed: int) -> Any:
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self._network()
        records, labels = self.data.records[indices], self.data.labels[indices]
        return self._run(records, labels, model=model, insecure_seed=seed).model.eval()


METHODS: dict[str, type[Method]] = {
    made.name: made
    for made in (GradientDescent, ProjectedDescent, NaiveBayes, Teachers, Synthesis, Federation)
}


def check_method(name: str) -> None:
    """Refuse a name that no method has."""
    if name not in METHODS:
        raise InvalidValue("method", name, f"one of {', '.join(METHODS)}")


def _tensors(records: NDArray[np.float32], labels: NDArray[np.int64]) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.from_numpy(records), torch.from_numpy(labels))


def _optimizer(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=2.0)
