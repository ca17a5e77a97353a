"""What a model is tried out with, where nobody describes its inputs: as its batches show."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.learn import dpsgd
from discreet.learn.dpsgd import _trial as trial
from discreet.learn.dpsgd._trial import inputs_like, verify_attribution
from discreet.learn.dpsgd.isolation import _subject as subject

torch.set_num_threads(1)
ROWS, WORDS = 6, 20


class Masked(nn.Module):
    """Takes words and a mask by name, and may add the mean of the batch."""

    def __init__(self, *, mixes: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4)
        self.head = nn.Linear(4, 2)
        self.mixes = mixes

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None
    ) -> Tensor:
        assert labels is None
        mask = attention_mask.unsqueeze(2).to(self.words.weight.dtype)
        states = (self.words(input_ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        if self.mixes:
            states = states + (attention_mask * 1.0).mean()
        outputs: Tensor = self.head(states)
        return outputs


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, at: int) -> Any:
        ids = torch.arange(at, at + 5)
        return {
            "input_ids": ids,
            "attention_mask": (ids > 2).long(),
            "labels": torch.tensor(at % 2),
        }


class Tuples(Texts):
    def __getitem__(self, at: int) -> Any:
        return tuple(super().__getitem__(at).values())


def begun(model: nn.Module, data: Any, **options: Any) -> tuple[dpsgd.Private, Any, Any]:
    plan = dpsgd.Plan(
        examples=ROWS,
        expected_batch_size=ROWS,
        steps=2,
        clip_norm=1.0,
        noise_multiplier=1.0,
        delta=1e-4,
    )
    private = dpsgd.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), plan)
    batches = private.batches(data, **options)
    return private, next(batches), batches


@pytest.mark.parametrize(
    ("data", "options"),
    [(Texts(), {}), (Texts(), {"collate": lambda rows: UserDict(default_collate(rows))})],
    ids=["dict", "as a tokenizer gives it"],
)
def test_batches_with_names_need_no_description(data: Any, options: Any) -> None:
    model = Masked()
    private, batch, _batches = begun(model, data, **options)
    labels = batch.pop("labels")
    private.step(
        lambda outputs, y: nn.functional.cross_entropy(outputs, y, reduction="none"),
        *batch.values(),
        labels,
    )
    assert private.certificate().run["isolation"] == "checked"
    private.detach()


@pytest.mark.parametrize("data", [Texts(), Tuples()], ids=["named", "in order"])
def test_a_model_of_two_inputs_that_mixes_is_refused(data: Any) -> None:
    with pytest.raises(PlanViolation, match="depend on each other"):
        begun(Masked(mixes=True), data)


def test_as_many_tensors_as_forward_must_be_given() -> None:
    parts = (torch.zeros(2, 5), torch.zeros(2, 3), torch.zeros(2))
    assert [one.shape for one in inputs_like(Masked(), parts, None)] == [(2, 5), (2, 3)]
    assert [one.shape for one in inputs_like(nn.Linear(5, 2), parts, None)] == [(2, 5)]


def test_labels_and_what_forward_does_not_take_are_left_out() -> None:
    batch = default_collate([{**Texts()[0], "id": 7}])
    assert list(inputs_like(Masked(), batch, None)) == ["input_ids", "attention_mask"]


def test_what_is_no_tensor_has_to_be_described() -> None:
    with pytest.raises(InvalidValue, match="expected a description of the model's inputs"):
        begun(Masked(), [{"input_ids": ["a", "b"]}] * ROWS, collate=lambda rows: rows)


def with_rounding(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[torch.dtype], bool]) -> None:
    """Have the engine's norms be half of what they are, in some precisions."""
    right = trial.GradientEngine.squared_norms

    def changed(self: Any, **options: Any) -> Tensor:
        norms = right(self, **options)
        return norms * 0.5 if wrong(norms.dtype) else norms

    monkeypatch.setattr(trial.GradientEngine, "squared_norms", changed)
    monkeypatch.setattr(subject, "LARGEST_DOUBLE", 0)


def test_what_single_precision_calls_different_must_differ_in_double_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A unit that rounding turns on changes gradients of large models by more than rounding."""
    with_rounding(monkeypatch, lambda dtype: dtype == torch.float32)
    verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))


def test_what_differs_in_double_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with_rounding(monkeypatch, lambda dtype: True)
    with pytest.raises(NotApplicable, match="given to the wrong examples"):
        verify_attribution(nn.Linear(3, 2), torch.zeros(1, 3))
