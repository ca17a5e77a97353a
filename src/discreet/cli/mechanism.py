"""From options to a loss: which mechanism, how sampled, how often, under which relation."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.options import count, real
from discreet.errors import DiscreetError, FileUnusable, InvalidValue

if TYPE_CHECKING:
    from discreet.privacy import Loss, Relation

__all__ = [
    "LaplaceScale",
    "LossFile",
    "Mechanism",
    "NoiseMultiplier",
    "Population",
    "Rate",
    "Sample",
    "Sensitivity",
    "Steps",
]

NoiseMultiplier = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Gaussian noise: standard deviation over what one added or removed record "
        "contributes (the clip norm).",
    ),
]
LaplaceScale = Annotated[
    str | None, typer.Option(metavar="NUMBER", help="Laplace noise: its scale.")
]
Sensitivity = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Laplace noise: L1 sensitivity under the relation.  [default: 1]",
    ),
]
LossFile = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="FILE",
        help="Any loss, as written by discreet.privacy.to_json; - is stdin.",
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="Poisson sampling: probability that a record takes part in a step.  [default: 1]",
    ),
]
Sample = Annotated[
    str | None,
    typer.Option(
        metavar="INTEGER",
        help="Fixed-size batches without replacement: records drawn in a step (with --population "
        "and --relation replace).",
    ),
]
Population = Annotated[
    str | None, typer.Option(metavar="INTEGER", help="With --sample: how many records there are.")
]
Steps = Annotated[
    str | None,
    typer.Option(metavar="INTEGER", help="How often the mechanism runs.  [default: 1]"),
]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The options that describe a release, as typed; ``loss()`` reads them."""

    noise_multiplier: str | None = None
    laplace_scale: str | None = None
    sensitivity: str | None = None
    loss_file: str | None = None
    rate: str | None = None
    sample: str | None = None
    population: str | None = None
    steps: str | None = None
    relation: str | None = None

    def loss(self) -> Loss:
        """The loss of the whole release; no accountant has been asked yet."""
        from discreet.privacy import Relation

        relation = None if self.relation is None else Relation.parse(self.relation)
        if self.loss_file is not None:
            run = self._from_file(self.loss_file)
            relation = relation or run.relation
        else:
            relation = relation or Relation.ADD_REMOVE
            steps = count("steps", self.steps or "1", at_least=1)
            step = self._sampled(self._base(relation), relation)
            run = step if steps == 1 else steps * step
        # A replacement is a removal and an addition: asked for by name, never implied.
        return run if run.relation is relation else run.group(2, relation=relation)

    def _base(self, relation: Relation) -> Loss:
        from discreet.privacy import Gaussian, Laplace, Relation

        if (self.noise_multiplier is None) == (self.laplace_scale is None):
            given = "none" if self.laplace_scale is None else "--noise-multiplier, --laplace-scale"
            raise InvalidValue(
                "mechanism", given, "one of --noise-multiplier, --laplace-scale, --loss"
            )
        # Poisson sampling starts from one added or removed record (S6).
        start = relation if self.rate is None else Relation.ADD_REMOVE
        if self.noise_multiplier is not None:
            self._refuse("sensitivity", "only with --laplace-scale")
            return Gaussian(real("noise_multiplier", self.noise_multiplier, above=0), start)
        if start is not relation:
            # A sensitivity is stated for one relation; here it would be needed for two.
            raise InvalidValue("relation", relation, "add_remove with --laplace-scale and --rate")
        scale = real("laplace_scale", str(self.laplace_scale), above=0)
        return Laplace(scale, real("sensitivity", self.sensitivity or "1", above=0), start)

    def _sampled(self, base: Loss, relation: Relation) -> Loss:
        if self.rate is not None:
            self._refuse("sample", "only without --rate")
            self._refuse("population", "only without --rate")
            return base.poisson(rate=real("rate", self.rate, above=0, at_most=1))
        if self.sample is None:
            self._refuse("population", "only with --sample")
            return base
        if self.population is None:
            raise InvalidValue("sample", self.sample, "only with --population")
        if relation.value != "replace":
            raise InvalidValue("relation", relation, "replace with --sample and --population")
        sample = count("sample", self.sample, at_least=1)
        population = count("population", self.population, at_least=sample)
        return base.sample_without_replacement(sample=sample, population=population)

    def _from_file(self, name: str) -> Loss:
        from discreet.privacy import from_json

        for field in fields(self):
            if field.name not in ("loss_file", "relation"):
                self._refuse(field.name, "only without --loss")
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
            return from_json(text)
        except OSError as error:
            raise FileUnusable("loss", name, f"a readable file ({error.strerror})") from None
        except (DiscreetError, ValueError) as error:
            raise FileUnusable("loss", name, f"a loss in JSON ({error})") from None

    def _refuse(self, argument: str, condition: str) -> None:
        value = getattr(self, argument)
        if value is not None:
            raise InvalidValue(argument, value, condition)
