"""Students: what learns from released labels and public data, and is itself released (S23).

Everything here is post-processing of public data and released labels, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["STUDENTS", "Student", "make_student"]

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
    """Return a new student of a named kind, or the one that was given.

    >>> make_student("table", {"method": "spreading"}).parameters["method"]
    'spreading'
    """
    if isinstance(student, Student) and not isinstance(student, type):
        if parameters:
            raise InvalidValue("student_parameters", parameters, "None where a student is given")
        return student
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
