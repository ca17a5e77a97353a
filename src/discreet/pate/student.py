"""Students: what learns from released labels and public data, and is itself released (S23).

Everything here is post-processing of public data and released labels, and costs nothing.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from sklearn.base import clone  # type: ignore[import-untyped]

from discreet import _validate
from discreet.errors import InvalidValue
from discreet.pate.lessons import one_thread

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STUDENTS", "Student", "make_student", "rehearse_student"]

_REHEARSED = 64

STUDENTS = {
    "table": ("discreet.pate.table_student", "TableStudent"),
    "images": ("discreet.pate.image_student", "ImageStudent"),
}


@runtime_checkable
class Student(Protocol):
    """A semi-supervised learner that can be written down as JSON and plain arrays."""

    kind: str

    @property
    def parameters(self) -> dict[str, Any]:
        """What to make it from, as JSON."""

    def features(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Features by which public rows are compared when queries are chosen."""

    def fit(
        self,
        rows: NDArray[np.float64],
        examples: NDArray[np.int64],
        labels: NDArray[np.int64],
        *,
        classes: int,
        features: NDArray[np.float64] | None = None,
    ) -> Any:
        """Learn from public ``rows`` of which ``examples`` have released ``labels``."""

    def scores(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """A score for each class, whose softmax are the probabilities."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted model, as plain arrays."""

    def set_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take such arrays."""


def make_student(student: object, parameters: Mapping[str, Any] | None = None) -> Student:
    """Return a new student of a named kind, or a copy of the one that was given.

    >>> make_student("table", {"method": "spreading"}).parameters["method"]
    'spreading'
    """
    if isinstance(student, Student) and not isinstance(student, type):
        if parameters:
            raise InvalidValue("student_parameters", parameters, "None where a student is given")
        try:
            own: Student = clone(student, safe=False)
        except Exception as error:  # noqa: BLE001 - told, and public
            expected = f"one that can be copied ({type(error).__name__}: {error})"
            raise InvalidValue("student", type(student).__qualname__, expected) from None
        return own
    kind = _validate.one_of("student", student, tuple(STUDENTS))
    module, name = STUDENTS[kind]
    told = dict(parameters or {})
    if "size" in told:
        told["size"] = tuple(told["size"])
    try:
        made: Student = getattr(import_module(module), name)(**told)
    except TypeError as error:
        raise InvalidValue(
            "student_parameters", parameters, f"parameters of {name} ({error})"
        ) from None
    return made


def rehearse_student(
    student: Student,
    rows: NDArray[np.float64],
    features: NDArray[np.float64],
    *,
    classes: int,
) -> None:
    """Try a copy of a student on a few public rows with made-up labels; raise if it fails.

    Labels are paid for before the student sees them.
    """
    few, seen = rows[:_REHEARSED], features[:_REHEARSED]
    examples = np.arange(max(1, len(few) // 2))
    name = type(student).__qualname__
    try:
        with warnings.catch_warnings(action="ignore"), one_thread():
            copied: Student = clone(student, safe=False)
            copied.fit(few, examples, examples % classes, classes=classes, features=seen)
            scores = np.asarray(copied.scores(few), dtype=np.float64)
        json.dumps(copied.parameters, allow_nan=False)
        written = {key: np.asarray(value) for key, value in copied.arrays().items()}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        expected = f"one that learns from public rows with made-up labels ({reason})"
        raise InvalidValue("student", name, expected) from error
    if scores.shape != (len(few), classes) or not bool(np.all(np.isfinite(scores))):
        expected = f"one that gives {classes} finite scores for every row"
        raise InvalidValue("student", name, expected)
    if any(array.dtype.kind not in "biuf" for array in written.values()):
        raise InvalidValue("student", name, "one whose arrays hold numbers")
