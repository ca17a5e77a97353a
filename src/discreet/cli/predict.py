"""``discreet predict``: what a trained model says about the rows of a file."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from discreet._files import replace_file
from discreet.cli.options import Json
from discreet.cli.tables import at_most, print_json, print_lines
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from discreet.data import Table

__all__ = ["predict"]


def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A directory that discreet train or pate wrote.")
    ],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A CSV or Parquet file.")],
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to write the CSV file.")
    ],
    as_json: Json = False,
) -> None:
    r"""Predict for every row of a file, in its order.

    The file needs the columns of the model's schema, without the target. Cells that break the
    schema are repaired as in training. Predictions are about the people in this file and cost
    the people of the training data nothing; they are not private for those in the file.

    \b
    Examples:
      discreet predict model new_patients.csv --output predictions.csv
    """
    from discreet.data import check_columns
    from discreet.learn import learner_name

    fitted = _read(model)
    check_columns(file, fitted.schema.for_prediction())
    target = Path(output)
    _check_output(target, file, Path(model))
    try:
        with (
            replace_file(target) as draft,
            draft.open("w", encoding="utf-8", newline="") as stream,
        ):
            rows = _written(fitted, file, stream)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidValue("output", output, f"a file that can be written ({reason})") from None
    certificate = fitted.certificate_
    if as_json:
        print_json(
            {
                "output": output,
                "rows": rows,
                "target": fitted.schema.target,
                "learner": learner_name(certificate.learner),
                "model_epsilon": certificate.epsilon,
                "model_delta": certificate.delta,
            }
        )
        return
    cost = f"epsilon {at_most(certificate.epsilon)}, delta {at_most(certificate.delta)}"
    from discreet.cli.train_summary import printable

    line = f"{rows} predictions of {fitted.schema.target!r} in {output} (model: {cost})"
    print_lines([printable(line)])


def _read(model: str) -> Any:
    from discreet.learn import load_model
    from discreet.pate import holds_student, read_student_directory

    return read_student_directory(model) if holds_student(model) else load_model(model)


def _check_output(target: Path, file: str, model: Path) -> None:
    """Refuse to write over the input or into the model."""
    try:
        exists = target.exists() if target.name else True
        same = exists and target.samefile(file)
        taken = exists and not target.is_file()
        inside = target.resolve().is_relative_to(model.resolve())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such name is possible"
        expected = f"the name of a file that can be written ({reason})"
        raise InvalidValue("output", str(target), expected) from None
    if taken:
        raise InvalidValue("output", str(target), "the name of a file")
    if same:
        raise InvalidValue("output", str(target), "another file than the one that is read")
    if inside:
        raise InvalidValue("output", str(target), "a place outside of the directory of the model")


def _written(fitted: Any, file: str, stream: TextIO) -> int:
    from discreet.data import table_batches

    writer: Any = csv.writer(stream, lineterminator="\n")
    heading = _heading(fitted)
    writer.writerow(heading)
    rows = 0
    for batch in table_batches(file, fitted.schema.for_prediction()):
        if batch.rows == 0:
            continue
        columns = _predicted(fitted, batch)
        texts = [[_cell(value) for value in columns[name].tolist()] for name in heading]
        writer.writerows(zip(*texts, strict=True))
        rows += batch.rows
    return rows


def _predicted(fitted: Any, table: Table) -> dict[str, Any]:
    """Return columns of predictions: the target, and for classes their probabilities."""
    import numpy as np  # here, so that `discreet --help` need not load it

    target = str(fitted.schema.target)
    if fitted.schema.task == "regression":
        return {target: fitted.predict(table)}
    shares = fitted.predict_proba(table)
    found = fitted.classes_
    labels = list(fitted.schema.classes if found.dtype.kind == "b" else found.tolist())
    chances = {f"probability of {label}": shares[:, at] for at, label in enumerate(labels)}
    return {target: np.array(labels, dtype=object)[shares.argmax(axis=1)], **chances}


def _heading(fitted: Any) -> list[str]:
    heading = [str(fitted.schema.target)]
    if fitted.schema.task == "classification":
        heading += [f"probability of {label}" for label in fitted.schema.classes]
    return heading


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
