"""Synthetic rows and pictures by a generator that a privately trained critic teaches.

Only the critic sees records, and it is trained by DP-SGD: for each record of a batch, the gradient
of log(1 + e^-D(x)) + log(1 + e^D(G(z))) with a fresh fake is clipped, and the sum gets noise
(:mod:`discreet.learn.dpsgd`). The generator learns from the critic alone, so its steps cost
nothing (Xie and others 2018; Bie, Kamath and Zhang 2023). It is there to compare with noisy tables,
which are better at the same epsilon (figures: docs/synthetic.md).

Columns of a table are labels, or numbers cut into public bins; the generator draws one cell of
each. Pictures are their codes (:mod:`discreet.synth._image_codes`), given the class.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet.certificate import Certificate
from discreet.data import Bounded, Schema, import_arrow
from discreet.engines import open_table
from discreet.errors import InvalidValue, NotApplicable, SchemaError
from discreet.learn import charged, default_delta, stated_unit
from discreet.learn.dpsgd import Plan
from discreet.privacy import Loss
from discreet.randomness import NormalStream
from discreet.randomness import source as random_source
from discreet.synth._cells import FineCells, fine_cells
from discreet.synth._counting import encode_rows
from discreet.synth._image_codes import UNIT, ImageCode, read_labels, read_pictures
from discreet.synth._model import finish
from discreet.synth._released import Released, sheet

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.randomness import Source

_SCALE = 0.3  # codes of pictures are some nine units long: this brings their numbers to one
_CRITIC_RATE, _GENERATOR_RATE = 2e-3, 1e-3
_BETAS = 0.5, 0.999
_AVERAGED = 0.99
_FAKES = 256
_SOFT = 0.5
_LEAK = 0.2
_LARGEST_WEIGHT = 1e30


@final
@dataclass(frozen=True)
class TableForm:
    """Rows of a schema as one-hot vectors: ``heads`` are the numbers of cells of all columns."""

    schema: Schema
    bins: int

    @cached_property
    def cells(self) -> tuple[FineCells, ...]:
        """The cells of all columns; numbers have ``bins`` of one width."""
        numbers = [name for name, one in self.schema.columns.items() if isinstance(one, Bounded)]
        return fine_cells(self.schema, dict.fromkeys(numbers, self.bins))

    @property
    def heads(self) -> tuple[int, ...]:
        """How many cells each column has."""
        return tuple(one.size for one in self.cells)

    @property
    def given(self) -> int:
        """How many numbers the generator is given beside noise."""
        return 0

    def encode(self, source: Any, labels: Any) -> NDArray[np.float32]:
        """Return rows as vectors; each depends on its own row alone."""
        if labels is not None:
            raise InvalidValue("labels", type(labels).__name__, "None: the target is a column")
        table = open_table(source, self.schema, engine="arrow")
        codes = encode_rows(table, self.cells)
        table.close()
        parts = [
            np.eye(size, dtype=np.float32)[code]
            for size, code in zip(self.heads, codes.T, strict=True)
        ]
        return np.concatenate(parts, axis=1)

    def decode(self, outputs: NDArray[np.float64], kinds: Any, bits: Source) -> Any:
        """Return an Arrow table for outputs of the generator."""
        del kinds
        found: dict[str, Any] = {}
        ends = np.cumsum(self.heads)[:-1]
        for one, part in zip(self.cells, np.split(outputs, ends, axis=1), strict=True):
            cell = np.argmax(part - np.log(-np.log(_uniforms(part.shape, bits))), axis=1)
            found[one.name] = one.decode(one.draw(cell, bits))
        return import_arrow("pyarrow").table(found)

    def to_json(self) -> dict[str, Any]:
        """Return the form as JSON values."""
        return {"schema": self.schema.to_toml(), "bins": self.bins}


@final
@dataclass(frozen=True)
class PictureForm:
    """Labelled pictures as codes, given the class."""

    classes: tuple[Any, ...]
    shape: tuple[int, int]
    kept: int

    heads = ()

    @property
    def code(self) -> ImageCode:
        """How pictures are written as numbers."""
        return ImageCode(*self.shape, self.kept)

    @property
    def given(self) -> int:
        """How many numbers the generator is given beside noise: one for each class."""
        return len(self.classes)

    def encode(self, source: Any, labels: Any) -> NDArray[np.float32]:
        """Return codes and classes as vectors; each depends on its own picture alone."""
        pictures = read_pictures("pictures", source)
        if pictures.shape[1:] != self.shape:
            raise InvalidValue("pictures", f"shape {pictures.shape}", f"pictures of {self.shape}")
        places = read_labels(labels, self.classes, len(pictures))
        codes = self.code.encode(pictures) * (_SCALE / UNIT)
        kinds = places[:, None] == np.arange(len(self.classes))
        return np.concatenate([codes, kinds], axis=1).astype(np.float32)

    def decode(self, outputs: NDArray[np.float64], kinds: Any, bits: Source) -> Any:
        """Return pictures and their labels for outputs of the generator."""
        del bits
        return self.code.decode(outputs * (UNIT / _SCALE)), np.array(self.classes)[kinds]

    def to_json(self) -> dict[str, Any]:
        """Return the form as JSON values."""
        return {"classes": list(self.classes), "shape": list(self.shape), "kept": self.kept}


@final
@dataclass(frozen=True)
class Gan:
    """A generator taught by a private critic.

    Parameters
    ----------
    steps
        How many noisy steps the critic takes.
    batch
        How many records a step takes on average.
    hidden
        The width of the two hidden layers of both networks.
    latent
        How many random numbers a row is made from.
    ratio
        How many steps of the critic come before one of the generator.
    bins
        Into how many cells numbers are cut, for tables.
    kept
        How many low frequencies are kept in each axis, for pictures.

    """

    steps: int = 1_000
    batch: int = 512
    hidden: int = 128
    latent: int = 32
    ratio: int = 1
    bins: int = 16
    kept: int = 12

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "hidden", "latent", "ratio", "bins", "kept"):
            _validate.integer(name, getattr(self, name), at_least=1, at_most=1 << 20)

    def plan(self, schema: Schema, *, epsilon: float, delta: float | None = None) -> GanPlan:
        """Return the plan for tables of a schema; nothing is read.

        Parameters
        ----------
        schema
            What is public about the table, with ``expected_rows``; one row for each person.
        epsilon, delta
            The budget, for adding or removing one row.

        Returns
        -------
        GanPlan
            Its ``loss`` is that of DP-SGD.

        Raises
        ------
        InvalidValue, NotApplicable
            If the schema or a parameter does not do.

        """
        if not isinstance(schema, Schema):
            raise InvalidValue("schema", type(schema).__name__, "a Schema: domains are public")
        schema.require_complete()
        if schema.person is not None or schema.unpaid_loss() is not None:
            raise NotApplicable("a generator needs one row a person and a schema that is paid for")
        if schema.expected_rows is None:
            raise InvalidValue("expected_rows", None, "the planned number of rows in the schema")
        point = default_delta(schema.expected_rows) if delta is None else delta
        form = TableForm(schema, self.bins)
        return self._plan(form, schema.expected_rows, epsilon, point)

    def plan_pictures(
        self,
        classes: Sequence[Any],
        *,
        expected_rows: int,
        shape: tuple[int, int] = (28, 28),
        epsilon: float,
        delta: float,
    ) -> GanPlan:
        """Return the plan for labelled pictures; nothing is read.

        Parameters
        ----------
        classes
            All labels that there are.
        expected_rows
            About how many pictures there are, a public number.
        shape
            Height and width of a picture.
        epsilon, delta
            The budget, for adding or removing one picture.

        Returns
        -------
        GanPlan
            Its ``loss`` is that of DP-SGD.

        """
        from discreet.synth._images import Images

        made = Images(kept=self.kept).plan(classes, shape=shape, epsilon=epsilon, delta=delta)
        form = PictureForm(made.classes, made.shape, self.kept)
        return self._plan(form, expected_rows, epsilon, delta)

    def _plan(
        self, form: TableForm | PictureForm, rows: int, epsilon: float, delta: float
    ) -> GanPlan:
        count = _validate.integer("expected_rows", rows, at_least=1)
        training = Plan(
            examples=count,
            expected_batch_size=min(self.batch, count),
            steps=self.steps,
            clip_norm=1.0,
            epsilon=epsilon,
            delta=delta,
            unit="row",
        )
        return GanPlan(form, training, self.hidden, self.latent, self.ratio)


@final
@dataclass(frozen=True)
class GanPlan:
    """What the training of a generator will do and cost; made by :class:`Gan`."""

    form: TableForm | PictureForm
    training: Plan
    hidden: int
    latent: int
    ratio: int

    @property
    def loss(self) -> Loss:
        """What the whole run reveals about one row."""
        return self.training.loss

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "method": "gan",
            "form": self.form.to_json(),
            "training": self.training.to_json(),
            "hidden": self.hidden,
            "latent": self.latent,
            "ratio": self.ratio,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GanPlan:
        """Return what :meth:`to_json` wrote; a damaged document raises SchemaError."""
        try:
            held = document["form"]
            form: TableForm | PictureForm
            if "schema" in held:
                form = TableForm(Schema.from_toml(held["schema"]), int(held["bins"]))
            else:
                height, width = held["shape"]
                form = PictureForm(tuple(held["classes"]), (height, width), int(held["kept"]))
            sizes = (int(document[name]) for name in ("hidden", "latent", "ratio"))
            return cls(form, Plan.from_json(document["training"]), *sizes)
        except (KeyError, TypeError, ValueError) as error:
            raise SchemaError(f"the plan of a synthesis cannot be read: {error}") from None

    def run(
        self,
        source: Any,
        labels: Any = None,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        unit: str | None = None,
        insecure_seed: int | None = None,
    ) -> GanModel:
        """Charge, train and release the generator.

        Parameters
        ----------
        source
            The table, or an array of pictures.
        labels
            The labels of the pictures; none for a table.
        ledger, dataset
            The ledger to charge, and the dataset in it.
        unit
            Whom the guarantee protects, where the ledger has another word than row.
        insecure_seed
            For tests only: the noise can be computed from it.

        Returns
        -------
        GanModel
            The released generator with its certificate.

        Raises
        ------
        InvalidValue
            If the data do not fit; nothing was charged.

        """
        rows = self.form.encode(source, labels)
        stated, bits = stated_unit(unit, persons=False), random_source(insecure_seed=insecure_seed)
        with charged(
            ledger,
            dataset,
            loss=self.loss,
            delta=self.training.delta,
            purpose="synthesis by a generator",
            unit=stated,
        ) as charge:
            model = GanModel(self, _train(self, rows, bits))
            schema = {} if model.schema is None else {"schema_hash": model.schema.content_hash}
            certificate = Certificate.of(
                self.loss,
                delta=self.training.delta,
                learner="GanModel",
                plan={**self.to_json(), "unit": stated, **schema},
                run={"steps": self.training.steps},
                unit=stated,
                randomness=bits.provenance,
            )
            return finish(model, certificate, charge)


def _train(
    plan: GanPlan, rows: NDArray[np.float32], bits: Source
) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]:
    """Return the layers of the generator, averaged over its steps."""
    import torch
    from torch import nn
    from torch.nn import functional as act
    from torch.utils.data import TensorDataset

    from discreet.learn.dpsgd import make_private

    def network(*widths: int) -> Any:
        layers: list[Any] = []
        for one, two in pairwise(widths):
            layers += [nn.Linear(one, two), nn.LeakyReLU(_LEAK)]
        return nn.Sequential(*layers[:-1])

    given, size = plan.form.given, rows.shape[1]
    made = size - given
    with torch.random.fork_rng(devices=[]):
        # Starting weights depend on no record.
        torch.manual_seed(int(bits.derive("weights").words64(1)[0] >> np.uint64(1)))
        critic, judge = (network(size, plan.hidden, plan.hidden, 1) for _ in range(2))
        generator, mean = (
            network(plan.latent + given, plan.hidden, plan.hidden, made) for _ in range(2)
        )
        mean.load_state_dict(generator.state_dict())

        fakes = _Fakes(plan, bits.derive("fakes"))

        def optimizer(parameters: Any, rate: float) -> Any:
            return torch.optim.Adam(parameters, lr=rate, betas=_BETAS)

        teach = optimizer(critic.parameters(), _CRITIC_RATE)
        learn = optimizer(generator.parameters(), _GENERATOR_RATE)
        # A row that counts for nothing: there is always one to draw from.
        rows = np.concatenate([rows, np.zeros((1, size), dtype=np.float32)])
        counts = (np.arange(len(rows)) < len(rows) - 1).astype(np.float32)
        data = TensorDataset(torch.from_numpy(rows), torch.from_numpy(counts))
        # Linear layers act on each row alone, so there is nothing to probe for mixing.
        private = make_private(
            critic, teach, plan.training, isolation="vouched", source=bits.derive("training")
        )
        taken = 0
        try:
            for records, weights in private.batches(data):
                with torch.no_grad():
                    other = fakes.draw(generator, len(records))
                said = critic(torch.stack([records, other], 1))[..., 0]
                losses = act.softplus(-said[:, 0]) + act.softplus(said[:, 1])
                private.backward(losses * weights)
                teach.step()
                teach.zero_grad()
                taken += 1
                if taken % plan.ratio:
                    continue
                judge.load_state_dict(critic.state_dict())
                loss: Any = act.softplus(-judge(fakes.draw(generator, _FAKES))).mean()
                learn.zero_grad()
                loss.backward()
                learn.step()
                # The first steps are soon forgotten: the weight of the past grows with them.
                past = min(_AVERAGED, taken / (taken + 10.0 * plan.ratio))
                with torch.no_grad():
                    for one, two in zip(mean.parameters(), generator.parameters(), strict=True):
                        one.mul_(past).add_(two, alpha=1.0 - past)
        finally:
            private.detach()
    found = [one.detach().numpy().astype(np.float64) for one in mean.parameters()]
    arrays = [np.nan_to_num(one, posinf=_LARGEST_WEIGHT, neginf=-_LARGEST_WEIGHT) for one in found]
    return tuple(zip(arrays[::2], arrays[1::2], strict=True))


@final
class _Fakes:
    """Fakes that are drawn one by one, from the source alone.

    What a fake is must not follow from its place in a batch: one record less moves those after it
    to other places, and would change the clipped gradients of them all.
    """

    def __init__(self, plan: GanPlan, bits: Source) -> None:
        self._plan = plan
        self._bits = bits
        self._normals = NormalStream(source=bits.derive("normals"))

    def draw(self, generator: Any, count: int) -> Any:
        """Return what a generator makes of fresh random numbers, with the drawn classes."""
        import torch
        from torch.nn import functional as act

        given, latent = self._plan.form.given, self._plan.latent
        noise = torch.from_numpy(self._normals.array((count, latent), dtype=np.float32))
        if given:
            drawn = (_uniforms((count,), self._bits) * given).astype(np.int64)
            kinds = torch.eye(given)[torch.from_numpy(np.minimum(drawn, given - 1))]
            return torch.cat([generator(torch.cat([noise, kinds], 1)), kinds], 1)
        made = generator(noise)
        gumbel = -np.log(-np.log(_uniforms(tuple(made.shape), self._bits)))
        noisy = (made + torch.from_numpy(gumbel).to(made.dtype)) / _SOFT
        cells = []
        for one in noisy.split(self._plan.form.heads, dim=1):
            soft = one.softmax(dim=1)
            hard = act.one_hot(one.argmax(dim=1), one.shape[1])
            cells.append(hard - soft.detach() + soft)  # forward one cell, backward all of them
        return torch.cat(cells, 1)


@final
@dataclass(frozen=True, eq=False)
class GanModel(Released):
    """A generator of rows or pictures; made by ``GanPlan.run``. It needs no torch."""

    plan: GanPlan
    layers: tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]
    certificate: Certificate | None = None

    @property
    def schema(self) -> Schema | None:
        """What is public about the table, if it is one."""
        return self.plan.form.schema if isinstance(self.plan.form, TableForm) else None

    def sample(self, n: int | None = None, *, label: Any = None, seed: int | None = None) -> Any:
        """Return synthetic rows; it costs nothing, however often.

        Parameters
        ----------
        n
            How many; by default the planned number.
        label
            The class of all pictures; all classes alike by default.
        seed
            Makes the rows repeatable. The model is public, so this hides nothing.

        Returns
        -------
        pyarrow.Table, or pictures and labels
            As what the plan is for.

        """
        form, bits = self.plan.form, random_source(insecure_seed=seed)
        count = _validate.integer("n", self.plan.training.examples if n is None else n, at_least=0)
        values = NormalStream(source=bits).array((count, self.plan.latent))
        kinds = None
        if isinstance(form, PictureForm):
            if label is not None and label not in form.classes:
                raise InvalidValue("label", label, f"one of {list(form.classes)}")
            kinds = np.arange(count) % form.given
            if label is not None:
                kinds = np.full(count, form.classes.index(label))
            values = np.concatenate([values, np.eye(form.given)[kinds]], axis=1)
        elif label is not None:
            raise InvalidValue("label", label, "None: a generator of rows has no classes")
        for at, (weights, shift) in enumerate(self.layers):
            values = values @ weights.T + shift
            if at < len(self.layers) - 1:
                values = np.where(values > 0, values, _LEAK * values)
        return form.decode(values, kinds, bits)

    def grid(self, each: int = 10, *, seed: int | None = None) -> NDArray[np.float64]:
        """Return one picture of samples to look at: a row for each class."""
        if not isinstance(self.plan.form, PictureForm):
            raise NotApplicable("only models of pictures have a grid")
        return sheet(self, self.plan.form.classes, each, seed)

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head and the arrays of the file."""
        arrays = {}
        for at, (weights, shift) in enumerate(self.layers):
            arrays[f"weights_{at}"], arrays[f"shift_{at}"] = weights, shift
        return {"plan": self.plan.to_json()}, arrays

    @classmethod
    def _restore(cls, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> GanModel:
        count = len(arrays) // 2
        layers = tuple((arrays[f"weights_{at}"], arrays[f"shift_{at}"]) for at in range(count))
        return cls(GanPlan.from_json(head["plan"]), layers)

    @classmethod
    def _stated_plan(cls, certificate: Certificate) -> GanPlan:
        """Return what has the loss that a certificate's plan states, computed again."""
        return GanPlan.from_json(certificate.plan)


def _uniforms(shape: tuple[int, ...], bits: Source) -> NDArray[np.float64]:
    """Return numbers between 0 and 1, never one of them."""
    words = bits.words64(math.prod(shape)) >> np.uint64(12)
    return np.asarray((words.astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)
