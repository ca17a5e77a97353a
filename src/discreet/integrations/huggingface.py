"""``transformers.Trainer`` and what is derived from it, such as ``trl.SFTTrainer``, under a plan.

Three lines of a script change: the import, the class, and ``plan=``::

    from discreet.integrations.huggingface import PrivateTrainer

    trainer = PrivateTrainer(model=model, args=args, train_dataset=data, plan=plan)
    trainer.train()
    certificate = trainer.certificate()

The plan says how many steps are taken and how large a batch is expected to be. Of the arguments,
``per_device_train_batch_size`` is how many examples go through the model at once. Everything else
of the framework is as it was: optimizers, schedulers, evaluation on public data, callbacks, saving.

The library's own loss is a mean over all words of a batch, in which the length of one record
changes the weight of all others. Here each record has a loss of its own (:func:`losses`), the mean
over its own words.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from discreet._files import write_file
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation
from discreet.integrations._run import Losses, Run, StepLoader, require_settings
from discreet.learn import dpsgd
from discreet.ledger import Charge

__all__ = ["PrivateTrainer", "losses", "private"]

transformers: Any = import_module("transformers")  # no types: it may not be there to read them
_ANSWERS = ("labels", "start_positions", "end_positions")
_OF_ROWS = {"ForSequenceClassification", "ForImageClassification", "ForAudioClassification"}
_OF_ROWS |= {"ForVideoClassification", "ForMultipleChoice"}
_OF_WORDS = {"ForMaskedLM", "ForTokenClassification"}
_OF_NEXT_WORDS = {"ForCausalLM", "ForConditionalGeneration", None}

_MIXES = "records of one batch would share a row, or what is computed"
_WANTED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (
        1,
        "the plan says how large a step is; per_device_train_batch_size what passes at once",
    ),
    "fp16": (False, "a scale of gradients depends on single examples; take bf16"),
    "torch_compile": (False, "what compiled code does is not seen"),
    "auto_find_batch_size": (False, "a step that failed counts, and is not taken again"),
    "load_best_model_at_end": (
        False,
        "the model of a run is its last one; choose among saved ones afterwards, on public data",
    ),
    "label_smoothing_factor": (0.0, "give losses= with a smoothed loss for each example"),
    "neftune_noise_alpha": (None, "its noise depends on the longest record of a batch"),
    "include_num_input_tokens_seen": ("no", "how many words were seen is private"),
    "train_sampling_strategy": ("random", "which records meet is what the plan says"),
    "use_liger_kernel": (False, "its fused layers use parameters where it is not seen"),
    "packing": (False, _MIXES),
    "padding_free": (False, _MIXES),
}


def losses(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """One loss for each row of a batch, for models of ``transformers`` by their task.

    Classification and regression of rows; of words, in any order or each from those before it, the
    mean over a row's own words whose label is not -100; answers as a span of words. It is what
    :class:`PrivateTrainer` takes, and suits ``dpsgd.Trainer(losses=...)`` and
    ``make_private(losses=...)``. Raises :class:`NotApplicable` for other tasks.
    """
    inputs = {name: value for name, value in batch.items() if name not in _ANSWERS}
    outputs = model(**inputs)
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    task = getattr(inner, "loss_type", None)
    if task == "ForQuestionAnswering" and "start_positions" in batch:
        ends = ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions"))
        first, last = (F.cross_entropy(one, batch[name], reduction="none") for one, name in ends)
        return (first + last) / 2
    if "labels" not in batch:
        raise InvalidValue("labels", None, "a column of labels in every batch")
    labels = batch["labels"]
    if task is None and type(inner).__name__.endswith("MultipleChoice"):
        task = "ForMultipleChoice"
    if task in _OF_ROWS:
        return _lose_per_row(outputs.logits, labels)
    if task in _OF_WORDS:
        return _of_words(outputs.logits, labels)
    can_generate = getattr(inner, "can_generate", bool)()
    if task in _OF_NEXT_WORDS and can_generate:
        if getattr(inner.config, "is_encoder_decoder", False):
            return _of_words(outputs.logits, labels)
        return _of_words(outputs.logits[:, :-1], labels[:, 1:])
    raise NotApplicable(
        f"{type(inner).__name__} is trained by a loss that is not known here for single examples: "
        "give losses=, a function (model, batch) -> one loss for each row"
    )


def _lose_per_row(logits: Tensor, labels: Tensor) -> Tensor:
    """One label a row: a class, a number for a single output, or yes and no for each class."""
    if logits.shape[1] == 1 and labels.is_floating_point():
        return (logits.squeeze(1) - labels.reshape(len(logits))).square()
    if labels.is_floating_point():
        if labels.shape != logits.shape:
            raise InvalidValue("labels", "numbers", "one number for each output of the model")
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean(1)
    return F.cross_entropy(logits, labels, reduction="none")


def _of_words(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the words of a row that have a label."""
    each = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
    return each.sum(1) / labels.ne(-100).sum(1).clamp(min=1)


class _UnderPlan:
    """The methods that a trainer of ``transformers`` has otherwise under a plan."""

    def __init__(
        self,
        *args: Any,
        plan: dpsgd.Plan,
        losses: Losses = losses,
        isolation: str = "check",
        inputs: Any = None,
        **kwargs: Any,
    ) -> None:
        settings = {"isolation": isolation, "inputs": inputs, "losses": losses}
        self.run, self._losses = Run(plan, settings), losses
        super().__init__(*args, **kwargs)
        trainer: Any = self
        require_settings(trainer.args, _WANTED)
        if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
            raise NotApplicable(
                "this trainer uses one process and one device; dpsgd.Trainer trains in a team"
            )
        if trainer.compute_loss_func is not None:
            raise InvalidValue(
                "compute_loss_func", "a function", "losses=, which gives one loss for each row"
            )
        trainer.args = copy.copy(trainer.args)
        trainer.args.max_steps = plan.steps
        trainer.args.max_grad_norm = 0.0  # the plan clips
        if getattr(trainer.args, "activation_checkpointing", False):
            given = trainer.args.activation_checkpointing_kwargs or {}
            contexts = {"use_reentrant": False, "context_fn": dpsgd.checkpoint_contexts}
            trainer.args.activation_checkpointing_kwargs = {**given, **contexts}

    def get_train_dataloader(self) -> StepLoader:
        """One item for each step of the plan, drawn by its sampler."""
        trainer: Any = self
        if trainer.train_dataset is None:
            raise InvalidValue("train_dataset", None, "a data set")
        dataset, collate = trainer.train_dataset, trainer.data_collator
        if hasattr(dataset, "column_names"):
            dataset = trainer._remove_unused_columns(dataset, description="Training")
        else:
            collate = trainer._get_collator_with_removed_columns(collate, description="Training")
        return StepLoader(
            self.run,
            self._begin,
            dataset,
            collate=self._complete_collate(collate),
            max_physical=trainer.args.per_device_train_batch_size,
            workers=trainer.args.dataloader_num_workers,
        )

    def _begin(self) -> None:
        trainer: Any = self
        # Copies of a model whose forward is wrapped would run the original.
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
        _make_copyable(model)
        optimizer = trainer.optimizer
        self.run.begin(model, getattr(optimizer, "optimizer", optimizer))

    def _complete_collate(self, collate: Any) -> Any:
        """A collate that gives an encoder-decoder what its decoder reads, made of the labels."""
        model: Any = getattr(self, "model", None)
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if shift is None or not getattr(model.config, "is_encoder_decoder", False):
            return collate

        def complete(examples: list[Any]) -> Any:
            batch = collate(examples)
            if "decoder_input_ids" not in batch and "labels" in batch:
                batch["decoder_input_ids"] = shift(labels=batch["labels"])
            return batch

        return complete

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], None]:
        """The next step; how many words it has is not counted."""
        return list(islice(epoch_iterator, num_batches)), None

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Losses of single examples and their gradients, piece by piece; no loss is returned."""
        trainer: Any = self
        model.train()
        self._pass(model, inputs)
        for more in self.run.rest():
            self._pass(model, more)
        return torch.zeros((), device=trainer.args.device)

    def _pass(self, model: nn.Module, batch: Any) -> None:
        trainer: Any = self
        batch = trainer._prepare_inputs(batch)
        with torch.autocast(
            trainer.args.device.type, dtype=torch.bfloat16, enabled=bool(trainer.args.bf16)
        ):
            found = self._losses(model, batch)
        self.run.begun.backward(found)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: it would tell how many examples and words a step had."""
        return 0

    def num_examples(self, dataloader: Any) -> int:
        """The planned number, which is written to logs; that of the data may be private."""
        if isinstance(dataloader, StepLoader):
            return self.run.plan.examples
        trainer: Any = super()
        return int(trainer.num_examples(dataloader))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what is public: not the training loss, for which no privacy was paid."""
        shown = _public(logs)
        if self.run.private is not None and "learning_rate" in shown:
            shown["epsilon"] = self.run.private.spent()
        super().log(shown, start_time)  # type: ignore[misc]

    def train(
        self,
        resume_from_checkpoint: Any = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Take the steps of the plan, once."""
        if resume_from_checkpoint or trial is not None:
            raise PlanViolation(
                "a run is trained once and from its beginning: to go on after a crash, take "
                "dpsgd.Trainer or make_private with checkpoint=; each trial of a search is a run "
                "with a plan and a charge of its own"
            )
        if self.run.private is not None:
            raise PlanViolation("this plan was trained already: another run needs another plan")
        trained: Any = super()
        try:
            output = trained.train(ignore_keys_for_eval=ignore_keys_for_eval)
        finally:
            self.run.end()
        metrics = {
            name: one for name, one in output.metrics.items() if name not in _PRIVATE_FIGURES
        }
        return output._replace(training_loss=math.nan, metrics=metrics)

    def certificate(self, *, charge: Charge | None = None) -> Certificate:
        """The certificate of the trained model; ``charge`` is the one in whose body it was."""
        return self.run.certificate(charge)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, beside its certificate once it is trained."""
        saver: Any = super()
        saver.save_model(output_dir, _internal_call)
        if not _internal_call and self.run.private is not None:
            trainer: Any = self
            place = Path(output_dir or trainer.args.output_dir)
            text = json.dumps(self.certificate().to_json(), indent=1) + "\n"
            write_file(place / "certificate.json", text)


def _make_copyable(model: nn.Module) -> None:
    """Take off what others put on a model so that only the original itself runs."""
    for module in model.modules():
        held = vars(module).get("forward")
        made_in = getattr(getattr(held, "__func__", None), "__globals__", {}).get("__name__", "")
        if made_in.startswith("trl."):
            module.forward = _ByTrl(module, held)
        for key, hook in list(module._forward_hooks.items()):
            # Inputs that require gradients: only checkpoints that enter twice need them.
            if getattr(hook, "__name__", "").startswith("make_inputs_require_grad"):
                del module._forward_hooks[key]


class _ByTrl:
    """A ``forward`` that ``trl`` put into a model, which calls the one of before in all other uses.

    A copy of the model gets the one of its class; the forward of ``trl`` would run the original.
    """

    def __init__(self, module: nn.Module, held: Any) -> None:
        self._module, self._held = module, held

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._held(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return MethodType, (type(self._module).forward, self._module)


_PRIVATE_FIGURES = ("loss", "grad_norm", "train_loss", "total_flos")


def _public(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in figures.items() if name not in _PRIVATE_FIGURES}


def private(trainer: type) -> type:
    """Return a class like this trainer, whose objects take ``plan=`` and train under it.

    For ``transformers.Trainer`` this is :class:`PrivateTrainer`; for ``trl.SFTTrainer`` say
    ``private(SFTTrainer)``. ``losses=`` replaces :func:`losses`, ``isolation=`` and ``inputs=`` are
    those of :func:`~discreet.learn.dpsgd.make_private`.
    """
    if not issubclass(trainer, transformers.Trainer):
        raise InvalidValue("trainer", trainer, "transformers.Trainer or a class derived from it")
    return type(f"Private{trainer.__name__}", (_UnderPlan, trainer), {"__doc__": private.__doc__})


class PrivateTrainer(_UnderPlan, transformers.Trainer):  # type: ignore[misc]
    """``transformers.Trainer`` under a plan: give ``plan=``, train, and ask for the certificate."""
