"""Targets: what an attacker may ask of a model of any kind.

A :class:`Target` answers with log-probabilities of the classes, or only with labels. Models
are wrapped by :func:`as_target`; the wrapped model is never changed and never trained.

Classes are the integers from 0 to ``classes - 1``: the columns of the probabilities. A model
whose classes have names (words, or numbers other than those of the columns) keeps them in
``names``, and :func:`class_indices` then reads labels as names, never as columns. An estimator
that met the classes 3 and 7 has columns for 0 to 7 and no class 1: that label is an error,
unless the caller states how many classes there are.

Log-probabilities rather than probabilities are what is kept: a network that is sure of a
record says p = 1 - 1e-20, and the difference to 1 is where the membership shows. The two are
equal only on paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import numpy as np

from discreet import _validate
from discreet.attacks._records import take_rows
from discreet.errors import InvalidValue, NotApplicable

if TYPE_CHECKING:
    from numpy.typing import NDArray


OUTPUTS = ("probabilities", "logits", "labels")
# Probabilities in single precision, summed over many classes, miss 1 by less than this.
_SUM_TOLERANCE = 1e-3
ROWS_TO_TELL = 16  # as many answers between 0 and 1 are hardly logits
# A label this large is an identifier, and columns up to it would fill the memory.
MOST_CLASSES = 1_000_000


@runtime_checkable
class Target(Protocol):
    """A model under attack, as a black box.

    ``classes`` is the number of classes, ``None`` while it is not known; ``names`` are the
    labels that stand for them in the model's own words, if it has any.
    """

    @property
    def classes(self) -> int | None:
        """The number of classes, if it is known."""

    @property
    def names(self) -> tuple[object, ...] | None:
        """The names of the classes, in the order of the columns."""

    @property
    def label_only(self) -> bool:
        """Whether the model gives labels and no probabilities."""

    def log_probabilities(self, records: Any) -> NDArray[np.float64]:
        """Return natural logarithms of the class probabilities, (n, classes)."""

    def probabilities(self, records: Any) -> NDArray[np.float64]:
        """Return class probabilities, (n, classes)."""

    def labels(self, records: Any) -> NDArray[np.int64]:
        """Return the predicted classes, (n,)."""


def as_target(
    model: Any,
    *,
    output: str | None = None,
    classes: int | None = None,
    batch_size: int = 4096,
) -> Target:
    """Wrap a model so that attacks can query it.

    ``model`` is a ``torch.nn.Module`` (its outputs are logits unless ``output`` says
    otherwise, and if several look like probabilities ``output`` must say what they are; it is
    queried in evaluation mode and put back afterwards), a scikit-learn
    estimator (``predict_proba``, or labels alone where there is only ``predict``), a
    :class:`Target`, or any callable from records to an array, for which ``output`` is
    ``"probabilities"``, ``"logits"`` or ``"labels"``. A single column of logits, or of
    probabilities, is read as that of class 1 of two.

    ``classes`` states the number of classes; it is needed where a scikit-learn model was
    trained on records that lack some of them. ``batch_size`` records go into one query.

    >>> coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities")
    >>> coin.probabilities(np.zeros((1, 3)))
    array([[0.5, 0.5]])

    Parameters
    ----------
    model
        A torch module, an estimator, a function, or a target.
    output
        "probabilities", "logits" or "labels", where the model does not say.
    classes
        How many there are, if the model has not met all of them.
    batch_size
        How many records it is asked about at once.

    Returns
    -------
    Target
        What attacks ask.

    Raises
    ------
    InvalidValue
        If the model cannot be asked, or its output is not clear.
    """
    size = _validate.integer("batch_size", batch_size, at_least=1)
    if classes is not None:
        _validate.integer("classes", classes, at_least=2)
    if output is not None:
        _validate.one_of("output", output, OUTPUTS)
    if isinstance(model, Target):
        if output is not None and model.label_only != (output == "labels"):
            raise InvalidValue("output", output, "what the target gives, or nothing")
        return model
    if is_torch_module(model):
        query = _module_query(model)
        return _QueriedTarget(query, output or "logits", classes, size, guessed=output is None)
    if hasattr(model, "predict") and output in (None, "probabilities", "labels"):
        return _estimator_target(model, output, classes, size)
    if not callable(model):
        raise InvalidValue(
            "model", type(model).__name__, "a torch module, a scikit-learn estimator or a callable"
        )
    if output is None:
        raise InvalidValue("output", output, "one of " + ", ".join(OUTPUTS) + " for a callable")
    return _QueriedTarget(model, output, classes, size)


def class_indices(target: Target, labels: Any) -> NDArray[np.int64]:
    """Return true labels as integers from 0, by name if the target's classes have names.

    A label names the class that it is equal to, or that is written the same, or that is the
    same number: 1, 1.0 and "1" all name a class "1", in whatever column that is. Labels are
    columns only for targets without names; a column of a class that an estimator has never met
    is one only if ``classes`` was stated to :func:`as_target`.

    >>> coin = as_target(lambda x: np.full((len(x), 2), 0.5), output="probabilities", classes=2)
    >>> class_indices(coin, [0, 1, 2])
    Traceback (most recent call last):
    discreet.errors.InvalidValue: labels = 2: expected classes from 0 to 1

    Parameters
    ----------
    target
        The model, with the names of its classes.
    labels
        Names of classes, or their numbers where it knows no names.

    Returns
    -------
    array of int
        The column of each label.

    Raises
    ------
    InvalidValue
        If a label is no class.
    """
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InvalidValue("labels", f"an array of shape {array.shape}", "one label per record")
    if target.names is not None:
        return _positions_by_name(array, target.names)
    codes = check_labels(array, target.classes)
    if isinstance(target, _QueriedTarget) and target.known_classes is not None:
        strange = codes[~np.isin(codes, target.known_classes)]
        if strange.size:
            met = ", ".join(map(str, target.known_classes.tolist()))
            expected = f"a class that the model has met ({met}); as_target(classes=) allows others"
            raise InvalidValue("labels", int(strange[0]), expected)
    return codes


def _positions_by_name(labels: NDArray[Any], names: tuple[object, ...]) -> NDArray[np.int64]:
    tables: tuple[tuple[Callable[[object], object], dict[object, int | None]], ...] = tuple(
        (read, {}) for read in (_same_label, str, _number)
    )
    for read, table in tables:
        for column, name in enumerate(names):
            key = read(name)
            # Two classes that read alike cannot be distinguished by this reading.
            table[key] = None if key in table else column
    known: dict[object, int] = {}
    for label in labels.tolist():
        if label in known:
            continue
        found = (table.get(read(label)) for read, table in tables if read(label) is not None)
        place = next((one for one in found if one is not None), None)
        if place is None:
            raise InvalidValue("labels", label, f"one of the model's classes, {names}")
        known[label] = place
    return np.array([known[label] for label in labels.tolist()], dtype=np.int64)


def _same_label(label: object) -> object:
    return label


def _number(label: object) -> float | None:
    try:
        return float(label)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def check_labels(labels: Any, classes: int | None) -> NDArray[np.int64]:
    """Return labels as int64 if they are integers from 0 and below ``classes``."""
    array = np.asarray(labels)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        shown = f"{array.dtype} of shape {array.shape}"
        raise InvalidValue("labels", shown, "one integer per record, the classes from 0")
    bounds = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if bounds[0] < 0 or (classes is not None and bounds[1] >= classes):
        wrong = bounds[0] if bounds[0] < 0 else bounds[1]
        upto = "" if classes is None else f" to {classes - 1}"
        raise InvalidValue("labels", wrong, f"classes from 0{upto}")
    if bounds[1] >= MOST_CLASSES:
        expected = f"classes from 0, each below {MOST_CLASSES}: number the classes anew"
        raise InvalidValue("labels", bounds[1], expected)
    return array.astype(np.int64)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log-probabilities of logits, without loss where one class takes it all.

    >>> log_softmax(np.array([[0.0, 800.0]])).tolist()
    [[-800.0, 0.0]]
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    top = shifted.argmax(axis=1)[:, None]
    exponentials = np.exp(shifted)
    np.put_along_axis(exponentials, top, 0.0, axis=1)
    # The largest term is exactly 1: log1p keeps what the others add to it.
    return np.asarray(shifted - np.log1p(exponentials.sum(axis=1, keepdims=True)))


@final
class _QueriedTarget:
    """A function from records to scores, asked in batches, whose answers are checked."""

    def __init__(
        self,
        query: Callable[[Any], Any],
        output: str,
        classes: int | None,
        batch_size: int,
        *,
        names: tuple[object, ...] | None = None,
        columns: NDArray[np.int64] | None = None,
        known_classes: NDArray[np.int64] | None = None,
        guessed: bool = False,
    ) -> None:
        self._query = query
        self._output = output
        self._batch_size = batch_size
        self._columns = columns
        self._guessed = guessed
        self.known_classes = known_classes
        self.classes = classes
        self.names = names
        self.label_only = output == "labels"

    def log_probabilities(self, records: Any) -> NDArray[np.float64]:
        if self.label_only:
            raise NotApplicable(
                "this target gives labels only: attacks that need probabilities do not apply, "
                "label_only() does"
            )
        parts = [self._log_scores(part) for part in self._answers(records)]
        return np.concatenate(parts)

    def probabilities(self, records: Any) -> NDArray[np.float64]:
        return np.exp(self.log_probabilities(records))

    def labels(self, records: Any) -> NDArray[np.int64]:
        if not self.label_only:
            return np.asarray(self.log_probabilities(records).argmax(axis=1), dtype=np.int64)
        return np.concatenate([self._label_codes(part) for part in self._answers(records)])

    def _answers(self, records: Any) -> Iterator[NDArray[Any]]:
        count = len(records)
        if count == 0:
            raise InvalidValue("records", 0, "at least one record")
        for start in range(0, count, self._batch_size):
            part = take_rows(records, slice(start, start + self._batch_size))
            answer = np.asarray(self._query(part))
            if answer.ndim == 0 or len(answer) != len(part):
                shown = f"shape {answer.shape} for {len(part)} records"
                raise InvalidValue("the model's output", shown, "one row for each record")
            yield answer

    def _label_codes(self, answer: NDArray[Any]) -> NDArray[np.int64]:
        if self.names is not None:
            return class_indices(self, answer)
        return check_labels(answer, self.classes)

    def _log_scores(self, answer: NDArray[Any]) -> NDArray[np.float64]:
        if self._guessed and answer.size == len(answer):
            _refuse_ambiguous_column(answer.reshape(len(answer)))
        scores = self._two_columns(answer.astype(np.float64))
        if not np.isfinite(scores).all():
            raise InvalidValue("the model's output", "a value that is not finite", "finite scores")
        if self._output == "logits":
            if self._guessed:
                _refuse_ambiguous_logits(scores)
            scores = log_softmax(scores)
        else:
            _check_probabilities(scores)
            with np.errstate(divide="ignore"):
                scores = np.log(np.clip(scores, 0.0, 1.0))
        if self._columns is not None:
            placed = np.full((len(scores), self.classes or 0), -np.inf)
            placed[:, self._columns] = scores
            scores = placed
        if self.classes is None:
            self.classes = scores.shape[1]
        if scores.shape[1] != self.classes:
            raise InvalidValue(
                "the model's output", f"{scores.shape[1]} columns", f"{self.classes} classes"
            )
        return scores

    def _two_columns(self, answer: NDArray[np.float64]) -> NDArray[np.float64]:
        known = self.names if self._columns is None else self._columns
        if known is not None and len(known) == 1 and answer.ndim == 2:
            return answer  # an estimator that met one class: its column is that class
        if answer.ndim == 1 or (answer.ndim == 2 and answer.shape[1] == 1):
            one = answer.reshape(len(answer))
            zero = np.zeros_like(one) if self._output == "logits" else 1.0 - one
            return np.stack([zero, one], axis=1)
        if answer.ndim != 2:
            raise InvalidValue(
                "the model's output", f"shape {answer.shape}", "(records, classes) scores"
            )
        return answer


def _refuse_ambiguous_logits(logits: NDArray[np.float64]) -> None:
    """Logits in several rows do not fall between 0 and 1 and sum to 1 by chance."""
    if len(logits) < 2 or logits.min() < 0 or logits.max() > 1 + _SUM_TOLERANCE:
        return
    if np.abs(logits.sum(axis=1) - 1).max() <= _SUM_TOLERANCE:
        raise InvalidValue(
            "the model's output",
            "rows of numbers from 0 to 1 that sum to 1",
            'as_target(output="probabilities"), or output="logits" if that is what they are',
        )


def _refuse_ambiguous_column(logits: NDArray[Any]) -> None:
    """Some logits of one column lie outside of 0 to 1, unless they are all alike."""
    if len(logits) >= ROWS_TO_TELL and logits.min() >= 0 and logits.max() <= 1:
        raise InvalidValue(
            "the model's output",
            "one column of numbers from 0 to 1",
            'as_target(output="probabilities"), or output="logits" if that is what they are',
        )


def _check_probabilities(scores: NDArray[np.float64]) -> None:
    low, high = float(scores.min()), float(scores.max())
    if low < -_SUM_TOLERANCE or high > 1 + _SUM_TOLERANCE:
        wrong = low if low < 0 else high
        raise InvalidValue("the model's output", wrong, "probabilities, from 0 to 1")
    sums = scores.sum(axis=1)
    worst = float(sums[np.abs(sums - 1).argmax()])
    if abs(worst - 1) > _SUM_TOLERANCE:
        raise InvalidValue(
            "the model's output", f"a row that sums to {worst:g}", "probabilities that sum to 1"
        )


def _estimator_target(
    model: Any, output: str | None, classes: int | None, batch_size: int
) -> _QueriedTarget:
    soft = hasattr(model, "predict_proba") and output != "labels"
    if output == "probabilities" and not soft:
        raise InvalidValue("output", output, "labels: this estimator has no predict_proba")
    known = getattr(model, "classes_", None)
    names: tuple[object, ...] | None = None
    columns: NDArray[np.int64] | None = None
    met: NDArray[np.int64] | None = None
    if known is not None:
        array = np.asarray(known)
        if np.issubdtype(array.dtype, np.integer) and not (array < 0).any():
            # A label is a column: a half without class 3 still has a column for it.
            columns = check_labels(array, classes)
            met = columns if classes is None else None
            classes = classes if classes is not None else int(columns.max()) + 1
        else:
            names = tuple(array.tolist())
            if classes is not None and classes != len(names):
                raise InvalidValue("classes", classes, f"{len(names)}, those of the estimator")
            classes = len(names)
    if not soft:
        return _QueriedTarget(
            model.predict, "labels", classes, batch_size, names=names, known_classes=met
        )
    return _QueriedTarget(
        model.predict_proba,
        "probabilities",
        classes,
        batch_size,
        names=names,
        columns=columns,
        known_classes=met,
    )


def is_torch_module(model: Any) -> bool:
    """Say whether a model is a module of torch, without importing torch to ask."""
    # A model from torch can only be there if torch is loaded: nothing is imported to ask.
    return any(kind.__module__.partition(".")[0] == "torch" for kind in type(model).__mro__) and (
        isinstance(model, import_module("torch").nn.Module)
    )


def _module_query(module: Any) -> Callable[[Any], NDArray[Any]]:
    torch = import_module("torch")

    def query(records: Any) -> NDArray[Any]:
        first = next((p for p in module.parameters() if p.is_floating_point()), None)
        # torch wants memory that may be written, which a mapped file is not.
        batch = (
            records
            if torch.is_tensor(records)
            else torch.from_numpy(np.require(records, requirements=["C", "W"]))
        )
        if first is not None:
            # Integers stay integers: they may be words. Images are given as floats.
            wanted = first.dtype if batch.is_floating_point() or batch.dtype == torch.bool else None
            batch = batch.to(device=first.device, dtype=wanted)
        with evaluation_mode(list(module.modules())), torch.no_grad():
            answer = _ask_module(module, batch)
        if not torch.is_tensor(answer):
            raise InvalidValue(
                "the model's output", type(answer).__name__, "one tensor; wrap the module"
            )
        answer = answer.detach().cpu()
        scores: NDArray[Any] = (answer.double() if answer.is_floating_point() else answer).numpy()
        return scores

    return query


def _ask_module(module: Any, batch: Any) -> Any:
    try:
        return module(batch)
    except RuntimeError as error:
        if batch.is_floating_point() or batch.is_complex():
            raise
        reason = str(error).partition("\n")[0]
        expected = f"floats, such as records / 255, if the module does not take integers ({reason})"
        raise InvalidValue("records", f"integers ({batch.dtype})", expected) from error


@contextmanager
def evaluation_mode(modules: Sequence[Any]) -> Iterator[None]:
    """Set evaluation mode and give every submodule its own mode back."""
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
