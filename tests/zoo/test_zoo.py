"""Models that nobody here wrote: run by rules, with the sums of their examples one by one.

`make test-zoo` runs this. It lays the packages over the environment, because torchvision has no
build for a CPU that installs beside this torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from discreet.errors import PlanViolation
from discreet.learn import dpsgd
from zoo.models import ROWS, ZOO, Entry, from_torchvision, images, measure, outputs_of, row_of

pytestmark = [pytest.mark.judge, pytest.mark.filterwarnings("ignore")]  # those of the packages
torch.set_num_threads(1)
PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"


def name_of(entry: Entry) -> str:
    return f"{entry.package}: {entry.name}"


@pytest.mark.parametrize("entry", ZOO, ids=name_of)
def test_clipped_sums_are_those_of_the_examples_one_by_one(entry: Entry) -> None:
    """In double precision, to 1e-6; Mixtral, which has no double kernel, to 2e-4 in its own.

    What runs example by example is what the table of docs/models.md says, and nothing else.
    """
    found = measure(entry)
    assert found.error <= (1e-6 if entry.double else 2e-4)
    assert all(any(part in name for part in entry.by_example) for name in found.by_example)
    assert bool(found.by_example) == bool(entry.by_example)
    assert row_of(entry, found) in PAGE.read_text(encoding="utf-8").splitlines()


class Rows(Dataset[Any]):
    """The rows of a batch as a data set of dictionaries or tuples, each with a label."""

    def __init__(self, entry: Entry) -> None:
        self.batch = entry.batch()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> Any:
        label = torch.tensor(at % 2)
        if isinstance(self.batch, dict):
            return {**{name: one[at] for name, one in self.batch.items()}, "labels": label}
        return (*(one[at] for one in self.batch), label)


def train(model: nn.Module, data: Dataset[Any]) -> dpsgd.Private:
    """One step of a loop that differs by three lines from a plain one."""
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    plan = dpsgd.Plan(
        examples=ROWS,
        expected_batch_size=ROWS,
        steps=1,
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-4,
    )
    private = dpsgd.make_private(model, optimizer, plan)
    for batch in private.batches(data):
        if isinstance(batch, dict):
            given = {name: one for name, one in batch.items() if name != "labels"}
        else:
            given = tuple(batch[:-1])
        outputs: Tensor = outputs_of(model, given)
        private.backward(outputs.reshape(len(outputs), -1).sin().sum(1))
        optimizer.step()
    return private


@pytest.mark.parametrize("entry", [one for one in ZOO if one.through_loop], ids=name_of)
def test_a_step_needs_no_description_of_the_inputs(entry: Entry) -> None:
    """With the package's defaults: dropout, caches, and batches with names where it has them."""
    private = train(entry.model().train(), Rows(entry))
    certificate = private.certificate()
    private.detach()
    assert certificate.run["isolation"] == "checked"


def test_batch_norm_is_refused_by_name() -> None:
    entry = Entry(
        "ResNet-18", "torchvision", lambda: from_torchvision("resnet18"), lambda: images(3, 32, 32)
    )
    with pytest.raises(PlanViolation, match="BatchNorm2d"):
        train(entry.model().train(), Rows(entry))
