"""Reading options: numbers as people write them, and the options that commands share.

Real numbers are decimals, scientific notation or a fraction of two such numbers.
A value that is refused is reported as it was typed, not as it was read.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from discreet import _validate
from discreet._files import replace_file
from discreet.errors import DiscreetError, FileUnusable, InvalidValue

if TYPE_CHECKING:
    from discreet.ledger import Ledger
    from discreet.privacy import Loss, Relation

_FORMS = "a number such as 0.01, 1e-5 or 256/60000"
F = TypeVar("F", bound=Callable[..., Any])


def real(argument: str, text: str, **limits: float) -> float:
    """Read a real number inside a range.

    >>> real("rate", "256/60000", above=0, at_most=1)
    0.004266666666666667
    >>> real("rate", "5/4", above=0, at_most=1)
    Traceback (most recent call last):
    discreet.errors.InvalidValue: rate = '5/4': expected a number with 0 < rate <= 1
    """
    number = _parse_number(argument, text)
    try:
        return _validate.real(argument, number, **limits)
    except InvalidValue as error:
        raise InvalidValue(argument, text, error.expected) from None


def count(argument: str, text: str, **limits: int) -> int:
    """Read an integer inside a range; ``1e6`` is one.

    >>> count("steps", "1e6", at_least=1)
    1000000
    """
    try:
        number: float = int(text)
    except ValueError:
        number = _parse_number(argument, text, forms="an integer such as 10000 or 1e6")
        # Beyond 2^53 a float no longer says which integer was meant.
        if math.isfinite(number) and number.is_integer() and abs(number) <= 2**53:
            number = int(number)
    try:
        return _validate.integer(argument, number, **limits)
    except InvalidValue as error:
        raise InvalidValue(argument, text, error.expected) from None


def _parse_number(argument: str, text: str, *, forms: str = _FORMS) -> float:
    numerator, slash, denominator = text.partition("/")
    try:
        return float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise InvalidValue(argument, text, forms) from None


class Real(click.ParamType[Any]):
    """The type of an option that is a real number, with its ``above``, ``at_most`` and so on."""

    name = "number"

    def __init__(self, **limits: float) -> None:
        self._limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: Any) -> Any:
        return real(_name(param), value, **self._limits) if isinstance(value, str) else value


class Count(click.ParamType[Any]):
    """The type of an option that is an integer, with ``at_least`` and ``at_most``."""

    name = "integer"

    def __init__(self, **limits: int) -> None:
        self._limits = limits

    def convert(self, value: Any, param: click.Parameter | None, ctx: Any) -> Any:
        return count(_name(param), value, **self._limits) if isinstance(value, str) else value


def _name(param: click.Parameter | None) -> str:
    assert param is not None
    return max(param.opts, key=len).lstrip("-").replace("-", "_")


DELTA = Real(at_least=0, below=1)
"""The type of a delta that may be 0."""


def combine_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return one decorator that adds several options, in their order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


relation_option = click.option(
    "--relation",
    metavar="add_remove|replace",
    help="Neighbouring data sets: one record added or removed, or one record changed.  "
    "[default: add_remove]",
)
insecure_seed_option = click.option(
    "--insecure-seed",
    type=Count(),
    help="Repeatable noise for experiments. It protects nothing, and the output says so.",
)
confidence_option = click.option(
    "--confidence", type=Real(above=0, below=1), default="0.95", help="Of all intervals."
)
picture_option = click.option(
    "--output", "-o", metavar="FILE", help="Write a picture (.png or .svg)."
)
page_option = click.option(
    "--output", "-o", metavar="FILE", help="Write a page with pictures (.html)."
)
seed_option = click.option("--seed", type=Count(at_least=0), help="Make the experiment repeatable.")
passphrase_option = click.option(
    "--passphrase-file",
    metavar="FILE",
    help="Its first line is the passphrase of the key; - reads stdin.",
)
trust_options = combine_options(
    click.option(
        "--key",
        "keys",
        metavar="FILE",
        multiple=True,
        help="A public key that you trust; repeatable, one suffices.",
    ),
    click.option("--revoked", metavar="FILE", help="The keys that count no longer."),
)


@dataclass(frozen=True)
class ChargedLedger:
    """The ledger and the dataset that a command charges, if it charges any."""

    ledger: str | None
    dataset: str | None

    @contextmanager
    def open(self) -> Iterator[Ledger | None]:
        """Open the ledger for the block; ``None`` if there is none."""
        if self.ledger is None:
            yield None
            return
        from discreet.ledger import Ledger

        with Ledger.open(self.ledger) as book:
            yield book

    def check(self) -> None:
        """Refuse one of the options without the other."""
        if (self.ledger is None) != (self.dataset is None):
            raise InvalidValue("dataset", self.dataset, "a name if and only if with --ledger")


ledger_option = click.option(
    "--ledger", metavar="LEDGER", help="Charge this ledger before any record is read."
)
dataset_option = click.option(
    "--dataset", metavar="NAME", help="The dataset to charge in the ledger."
)


def training_options(out: str, *, metavar: str = "DIRECTORY") -> Callable[[F], F]:
    """Return what all commands take that learn from a file; the callee gets ``charged``."""

    def add(function: F) -> F:
        @wraps(function)
        def read(ledger: str | None, dataset: str | None, **given: Any) -> Any:
            return function(charged=ChargedLedger(ledger, dataset), **given)

        options = combine_options(
            click.option(
                "--schema",
                metavar="FILE",
                required=True,
                help="The schema: what is public about the table.",
            ),
            click.option(
                "--epsilon", type=Real(above=0), required=True, help="The epsilon to spend."
            ),
            click.option("--out", metavar=metavar, required=True, help=out),
            click.option(
                "--target",
                metavar="NAME",
                help="The column to predict.  [default: the schema's]",
            ),
            click.option(
                "--delta",
                type=Real(above=0, below=1),
                help="The delta to spend.  [default: a power of ten, at most 1/(10 rows)]",
            ),
            relation_option,
            ledger_option,
            dataset_option,
            insecure_seed_option,
        )
        return options(read)  # type: ignore[return-value]

    return add


# From options to a loss: which mechanism, how sampled, how often, under which relation.
noise_option = click.option(
    "--noise-multiplier",
    metavar="NUMBER",
    help="Gaussian noise: standard deviation over what one added or removed record contributes "
    "(the clip norm).",
)
sensitivity_option = click.option(
    "--sensitivity",
    metavar="NUMBER",
    help="Laplace noise: L1 sensitivity under the relation.  [default: 1]",
)
rate_option = click.option(
    "--rate",
    metavar="NUMBER",
    help="Poisson sampling: probability that a record takes part in a step.  [default: 1]",
)
steps_option = click.option(
    "--steps", metavar="INTEGER", help="How often the mechanism runs.  [default: 1]"
)


def mechanism_options(function: F) -> F:
    """Add the options that describe a release; the callee gets them as ``mechanism``."""

    @wraps(function)
    def read(**given: Any) -> Any:
        described = {field.name: given.pop(field.name) for field in fields(Mechanism)}
        return function(mechanism=Mechanism(**described), **given)

    options = combine_options(
        noise_option,
        click.option("--laplace-scale", metavar="NUMBER", help="Laplace noise: its scale."),
        sensitivity_option,
        click.option(
            "--local-epsilon",
            metavar="NUMBER",
            help="A local report: its epsilon, under replace.",
        ),
        click.option(
            "--shuffled",
            metavar="INTEGER",
            help="How many honest reports a trusted shuffler mixes (under replace).",
        ),
        click.option(
            "--loss",
            "loss_file",
            metavar="FILE",
            help="Any loss, as written by discreet.privacy.to_json; - is stdin.",
        ),
        click.option(
            "--from",
            "history_file",
            metavar="FILE",
            help="The history of an Opacus accountant as JSON; - is stdin.",
        ),
        rate_option,
        click.option(
            "--sample",
            metavar="INTEGER",
            help="Fixed-size batches without replacement: records drawn in a step (with "
            "--population and --relation replace).",
        ),
        click.option(
            "--population", metavar="INTEGER", help="With --sample: how many records there are."
        ),
        steps_option,
        relation_option,
    )
    return options(read)  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """The options that describe a release, as typed; ``loss()`` reads them."""

    noise_multiplier: str | None = None
    laplace_scale: str | None = None
    sensitivity: str | None = None
    local_epsilon: str | None = None
    shuffled: str | None = None
    loss_file: str | None = None
    history_file: str | None = None
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
        elif self.history_file is not None:
            run = self._from_history(self.history_file)
            relation = relation or run.relation
        else:
            usual = Relation.ADD_REMOVE if self.local_epsilon is None else Relation.REPLACE
            relation = relation or usual
            steps = count("steps", self.steps or "1", at_least=1)
            step = self._sample_loss(self._base(relation), relation)
            run = step if steps == 1 else steps * step
        # A replacement is a removal and an addition: asked for by name, never implied.
        return run if run.relation is relation else run.group(2, relation=relation)

    def _base(self, relation: Relation) -> Loss:
        from discreet.privacy import Gaussian, Laplace, PureDP, Relation

        kinds = ("noise_multiplier", "laplace_scale", "local_epsilon")
        options = {name: f"--{name.replace('_', '-')}" for name in kinds}
        given = [options[name] for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            expected = f"one of {', '.join(options.values())}, --loss, --from"
            raise InvalidValue("mechanism", ", ".join(given) or "none", expected)
        if self.local_epsilon is not None:
            self._refuse("sensitivity", "only with --laplace-scale")
            return PureDP(self.local_epsilon, Relation.REPLACE)
        if self.noise_multiplier is not None:
            self._refuse("sensitivity", "only with --laplace-scale")
            return Gaussian(real("noise_multiplier", self.noise_multiplier, above=0), relation)
        # For other noise amplification is proved for one added or removed record.
        start = relation if self.rate is None else Relation.ADD_REMOVE
        if start is not relation:
            # A sensitivity is stated for one relation; here it would be needed for two.
            raise InvalidValue("relation", relation, "add_remove with --laplace-scale and --rate")
        scale = real("laplace_scale", str(self.laplace_scale), above=0)
        return Laplace(scale, real("sensitivity", self.sensitivity or "1", above=0), start)

    def _sample_loss(self, base: Loss, relation: Relation) -> Loss:
        if self.shuffled is not None:
            self._refuse("rate", "only without --shuffled")
            self._refuse("sample", "only without --shuffled")
            base = base.shuffled(population=count("shuffled", self.shuffled, at_least=1))
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
        text = read_text("loss", name)
        try:
            return from_json(text)
        except (DiscreetError, ValueError) as error:
            raise FileUnusable("loss", name, f"a loss in JSON ({error})") from None

    def _from_history(self, name: str) -> Loss:
        from discreet._json import read_json
        from discreet.privacy import from_opacus

        for field in fields(self):
            if field.name not in ("history_file", "relation"):
                self._refuse(field.name, "only without --from")
        text = read_text("from", name)
        try:
            return from_opacus(read_json(text, "the history")).loss
        except (DiscreetError, ValueError) as error:
            expected = f"the history of an Opacus accountant in JSON ({error})"
            raise FileUnusable("from", name, expected) from None

    def _refuse(self, argument: str, condition: str) -> None:
        value = getattr(self, argument)
        if value is not None:
            name = "from" if argument == "history_file" else argument
            raise InvalidValue(name, value, condition)


def read_text(argument: str, name: str) -> str:
    """Return the text of a file, or of stdin for ``-``; an error shows nothing of what it holds."""
    try:
        if name == "-":
            return sys.stdin.read()
        return Path(name).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FileUnusable(argument, name, f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError:
        raise FileUnusable(argument, name, "a text file in UTF-8") from None


@contextmanager
def output_file(
    output: str | None, *endings: str, argument: str = "output", private: bool = False
) -> Iterator[Path | None]:
    """Yield a place to write, which replaces ``output`` when the block succeeds.

    Entering the block proves that the directory can be written. If the block fails, nothing is
    left behind and an older file of that name is untouched. Without an output it yields None.
    With ``private`` only the owner may read the file.
    """
    if output is None:
        yield None
        return
    target = Path(output)
    suffix = target.suffix.lower()
    if endings and suffix not in endings and f"{suffix}l" not in endings:  # .htm is .html
        ending = " or ".join(endings)
        raise InvalidValue(argument, output, f"a file name that ends in {ending}")
    try:
        # To replace a device by a file would be worse than to refuse it.
        if "\0" in output or not target.name or (target.exists() and not target.is_file()):
            raise InvalidValue(argument, output, "the name of a file")
        with replace_file(target, private=private) as draft:
            yield draft
    except OSError as error:
        named = error.filename
        if isinstance(error, DiscreetError) or (named and Path(named).parent != target.parent):
            raise  # another file is to blame
        reason = error.strerror or type(error).__name__
        raise InvalidValue(argument, output, f"a file that can be written ({reason})") from None
