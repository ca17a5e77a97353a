"""What all released models share: a certificate and files; and a sheet of sampled pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from discreet._files import new_directory
from discreet.certificate import Certificate
from discreet.errors import NotApplicable, SchemaError
from discreet.learn import digest_model, read_model, write_model, write_model_files
from discreet.privacy import Loss

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Released:
    """A released model: a frozen dataclass with a plan, which has a loss, and a certificate.

    ``schema`` is that of the table, where there is one.
    """

    plan: Any
    schema: Any
    certificate: Certificate | None

    @property
    def certificate_(self) -> Certificate:
        """The guarantee."""
        if self.certificate is None:
            raise NotApplicable("this model has no certificate")
        return self.certificate

    def _contents(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the head and the arrays of the file."""
        raise NotImplementedError

    @classmethod
    def _restore(cls, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the model of a file, without its certificate; damage raises KeyError."""
        raise NotImplementedError

    def _cost(self) -> Loss:
        """Return what the certificate must cover."""
        loss: Loss = self.plan.loss
        return loss

    def save(self, path: str | Path) -> None:
        """Write the model to one file of arrays and JSON, atomically and without pickle."""
        head, arrays = self._contents()
        head["certificate"] = self.certificate_.to_json()
        write_model(path, kind=type(self).__name__, head=head, arrays=arrays)

    def save_directory(self, path: str | Path) -> None:
        """Write model and certificate to a new directory, or nothing."""
        with new_directory(path) as draft:
            write_model_files(draft, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model that :meth:`save` wrote.

        Raises
        ------
        SchemaError
            If the file is damaged, of another version, or not what its certificate is of.

        """
        return cls._from_file(*read_model(path, kind=cls.__name__))

    @classmethod
    def _from_file(
        cls, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], schema: Any = None
    ) -> Self:
        del schema  # the file has its own; whoever reads a directory compares the two
        certificate = Certificate.from_json(head["certificate"])
        if certificate.model_digest != digest_model(cls.__name__, head, arrays):
            raise SchemaError("a saved model is not the one that its certificate was written for")
        try:
            model = cls._restore(head, arrays)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SchemaError(f"a saved model is damaged: {error}") from None
        declared = None if model.schema is None else model.schema.content_hash
        if certificate.plan.get("schema_hash") != declared:
            raise SchemaError("a saved model and its certificate disagree about the schema")
        certificate.check_covers(model._cost())
        object.__setattr__(model, "certificate", certificate)
        return model


def sheet(model: Any, classes: Sequence[Any], each: int, seed: int | None) -> NDArray[np.float64]:
    """Return one picture of samples to look at: a row for each class."""
    rows = [
        np.concatenate(list(model.sample(each, label=one, seed=seed)[0]), axis=1) for one in classes
    ]
    return np.concatenate(rows, axis=0)
