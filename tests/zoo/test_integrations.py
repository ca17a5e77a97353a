"""Scripts as the guides of other frameworks have them, made private by three changed lines.

`make test-zoo` runs this. A script is run with its lines exchanged, on made-up data and small
random models; nothing else of it changes. What the certificate says is compared with the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from discreet.certificate import Certificate, read_certificate
from discreet.errors import InvalidValue, NotApplicable, PlanViolation, SchemaError
from discreet.learn import dpsgd
from zoo import models as zoo

pytestmark = [pytest.mark.judge, pytest.mark.filterwarnings("ignore")]  # those of the packages
torch.set_num_threads(1)
zoo.allow_torchvision()
EXAMPLES, STEPS = 24, 3


def plan(**changes: Any) -> dpsgd.Plan:
    settings: dict[str, Any] = {
        "examples": EXAMPLES,
        "expected_batch_size": 8,
        "steps": STEPS,
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    }
    return dpsgd.Plan(**settings | changes)


def run(script: str, changes: Mapping[str, str], **names: Any) -> dict[str, Any]:
    """Run a script with at most three of its lines exchanged; each of them stands there once."""
    assert len(changes) <= 3
    for before, after in changes.items():
        assert script.count(before) == 1
        script = script.replace(before, after)
    exec(compile(script, "script", "exec"), names)
    return names


def check(certificate: Certificate, **run_facts: Any) -> None:
    """What a plan of all steps and a loop without readings gives."""
    assert certificate.loss == plan().loss
    assert certificate.run["steps_taken"] == STEPS
    assert certificate.run["isolation"] == "checked"
    for name in ("steps_with_numbers_read", "outside_tensors", "steps_with_writes"):
        assert certificate.run.get(name) == run_facts.get(name)


class Texts(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows of different lengths."""

    def __init__(self, *, words: bool = False) -> None:
        draws = torch.Generator().manual_seed(0)
        lengths = [3 + at % 4 for at in range(EXAMPLES)]
        self.ids = [torch.randint(5, zoo.WORDS, (one,), generator=draws) for one in lengths]
        self.words = words

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, at: int) -> dict[str, Any]:
        ids = self.ids[at]
        return {"input_ids": ids, "labels": ids.clone() if self.words else torch.tensor(at % 2)}


def pad(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = [one["input_ids"] for one in examples]
    labels = [one["labels"] for one in examples]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=1),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100)
        if labels[0].ndim
        else torch.stack(labels),
    }


# --- transformers and trl ------------------------------------------------------------------

TRAINER = """
from transformers import Trainer, TrainingArguments

arguments = TrainingArguments(
    output_dir=place, per_device_train_batch_size=4, report_to="none", use_cpu=True,
    disable_tqdm=True, logging_steps=1, **settings,
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=texts, eval_dataset=texts, data_collator=pad,
)
output = trainer.train()
trainer.save_model(place + "/model")
"""
PRIVATE_TRAINER = {
    "from transformers import Trainer, TrainingArguments": "from transformers import "
    "TrainingArguments\nfrom discreet.integrations.huggingface import PrivateTrainer",
    "trainer = Trainer(": "trainer = PrivateTrainer(plan=plan,",
}


@pytest.mark.parametrize(
    ("make", "words", "settings"),
    [
        (zoo.bert, False, {"eval_strategy": "steps", "eval_steps": 2}),
        (zoo.gpt2, True, {"bf16": True, "gradient_checkpointing": True}),
        (zoo.seq2seq, True, {}),
    ],
    ids=["BERT, evaluated", "GPT-2, bfloat16, checkpointed", "T5"],
)
def test_a_trainer_of_transformers(
    make: Any, words: bool, settings: dict[str, Any], tmp_path: Path
) -> None:
    given = {"texts": Texts(words=words), "pad": pad, "plan": plan(), "place": str(tmp_path)}
    names = run(TRAINER, PRIVATE_TRAINER, model=make(), settings=settings, **given)
    trainer, output = names["trainer"], names["output"]
    check(trainer.certificate())
    assert output.global_step == STEPS
    assert output.training_loss != output.training_loss  # not a number
    logged = {name for entry in trainer.state.log_history for name in entry}
    assert not logged & {"loss", "grad_norm", "train_loss", "total_flos"}
    assert ("eval_loss" in logged) == ("eval_steps" in settings)
    assert trainer.state.total_flos == 0
    assert trainer.num_examples(trainer.get_train_dataloader()) == plan().examples
    saved = tmp_path / "model"
    assert read_certificate(saved).model_digest == trainer.certificate().model_digest
    dpsgd.check_certificate(read_certificate(saved), type(trainer.model).from_pretrained(saved))
    with pytest.raises(PlanViolation, match="trained already"):
        trainer.train()


def test_losses_of_rows_are_those_of_the_rows_alone() -> None:
    """Rows of one, in which the library's own mean over words is that of the row."""
    from discreet.integrations.huggingface import losses

    for make, words in ((zoo.bert, False), (zoo.gpt2, True), (zoo.llama, True)):
        model, texts = zoo.still(make()).eval(), Texts(words=words)
        rows = [texts[at] for at in range(4)]
        together = losses(model, pad(rows))
        alone = torch.stack([model(**pad([row])).loss for row in rows])
        torch.testing.assert_close(together, alone)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gradient_accumulation_steps": 2}, "per_device_train_batch_size"),
        ({"load_best_model_at_end": True, "eval_strategy": "steps"}, "last one"),
        ({"label_smoothing_factor": 0.1}, "smoothed"),
        ({"train_sampling_strategy": "group_by_length"}, "plan says"),
        ({"include_num_input_tokens_seen": "all"}, "private"),
        ({"neftune_noise_alpha": 5.0}, "longest record"),
    ],
)
def test_settings_that_contradict_a_plan_are_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValue, match=words):
        run(
            TRAINER,
            PRIVATE_TRAINER,
            model=zoo.bert(),
            settings=settings,
            texts=Texts(),
            pad=pad,
            plan=plan(),
            place=str(tmp_path),
        )


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", "the", "capital", "of", "is", "on", "france", "paris"]
    words += ["germany", "berlin", "spree"]
    made = Tokenizer(
        models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


SFT = """
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(
    model=model,
    args=SFTConfig(output_dir=place, per_device_train_batch_size=4, report_to="none",
                   use_cpu=True, disable_tqdm=True),
    train_dataset=questions,
    processing_class=tokenizer,
    peft_config=LoraConfig(target_modules=["q_proj", "v_proj"]),
)
trainer.train()
"""


def test_supervised_fine_tuning_of_an_adapter_on_completions(tmp_path: Path) -> None:
    """With the defaults of trl: bfloat16, checkpointed layers, a loss of completions alone."""
    from datasets import Dataset

    from discreet.integrations import peft

    asked = [("france", "paris"), ("germany", "berlin on the spree")] * (EXAMPLES // 2)
    rows = [{"prompt": f"the capital of {one} is", "completion": f" {two}"} for one, two in asked]
    changes = {
        "from trl import SFTConfig, SFTTrainer": "from trl import SFTConfig, SFTTrainer\n"
        "from discreet.integrations.huggingface import private",
        "trainer = SFTTrainer(": "trainer = private(SFTTrainer)(plan=plan,",
    }
    base = zoo.llama()
    public = {name: one.clone() for name, one in base.state_dict().items()}
    given = {"questions": Dataset.from_list(rows), "tokenizer": tokenizer(), "plan": plan()}
    names = run(SFT, changes, model=base, place=str(tmp_path), **given)
    trainer = names["trainer"]
    assert trainer.args.bf16
    assert trainer.args.activation_checkpointing
    certificate = trainer.certificate()
    check(certificate)

    adapter = tmp_path / "adapter"
    peft.save(adapter, trainer.model, certificate)
    fresh = zoo.llama()
    fresh.load_state_dict(public)
    _, found = peft.load(adapter, fresh)
    assert found == certificate
    with pytest.raises(SchemaError, match="not the one"):
        peft.load(adapter, zoo.llama())  # another public model
    with torch.no_grad():
        next(one for one in trainer.model.parameters() if one.requires_grad).add_(1.0)
    with pytest.raises(SchemaError, match="not the one"):
        peft.save(adapter, trainer.model, certificate)


# --- peft in a loop of one's own -------------------------------------------------------------

LORA = """
from peft import LoraConfig, get_peft_model

model = get_peft_model(model, LoraConfig(target_modules=["query", "value"], task_type="SEQ_CLS"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(texts, batch_size=8, shuffle=True, collate_fn=pad)
model.train()
for batch in loader:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_adapter_in_a_loop() -> None:
    changes = {
        "loader = DataLoader(texts, batch_size=8, shuffle=True, collate_fn=pad)": "private = "
        "dpsgd.make_private(model, optimizer, plan, losses=losses)",
        "for batch in loader:": "for batch in private.batches(texts, collate=pad):",
        "model(**batch).loss.backward()": "private.backward(losses(model, batch))",
    }
    from torch.utils.data import DataLoader

    from discreet.integrations.huggingface import losses

    given = {"torch": torch, "DataLoader": DataLoader, "dpsgd": dpsgd, "losses": losses}
    names = run(LORA, changes, model=zoo.bert(), texts=Texts(), pad=pad, plan=plan(), **given)
    check(names["private"].certificate())
    names["private"].detach()


# --- lightning -------------------------------------------------------------------------------

AUTOENCODER = """
import lightning as L
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader


class Autoencoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
        self.decode = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 64))

    def training_step(self, batch, batch_idx):
        images, _ = batch
        found = self.decode(self.encode(images))
        loss = mse_loss(found, images.flatten(1))
        if log:
            self.log("loss", loss.mean())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


model = Autoencoder()
trainer = L.Trainer(max_epochs=1, **quiet)
trainer.fit(model, DataLoader(data, batch_size=8, shuffle=True))
"""
PRIVATE_AUTOENCODER = {
    "loss = mse_loss(found, images.flatten(1))": "loss = "
    "mse_loss(found, images.flatten(1), reduction='none').mean(1)",
    "trainer = L.Trainer(max_epochs=1, **quiet)": "training = PrivateTraining(plan)\n"
    "trainer = L.Trainer(max_epochs=1, plugins=training, **quiet)",
    "DataLoader(data, batch_size=8, shuffle=True)": "training.batches(data, max_physical=pieces)",
}
QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
QUIET |= {"enable_progress_bar": False, "enable_model_summary": False}


def pictures() -> torch.utils.data.TensorDataset:
    draws = torch.Generator().manual_seed(0)
    images = torch.randn(EXAMPLES, 1, 8, 8, generator=draws)
    return torch.utils.data.TensorDataset(images, torch.arange(EXAMPLES) % 3)


@pytest.mark.parametrize(("pieces", "log"), [(None, True), (4, False)])
def test_a_module_of_lightning_without_a_forward(pieces: int | None, log: bool) -> None:
    from discreet.integrations.lightning import PrivateTraining

    names = run(
        AUTOENCODER,
        PRIVATE_AUTOENCODER,
        PrivateTraining=PrivateTraining,
        plan=plan(),
        data=pictures(),
        quiet=QUIET,
        pieces=pieces,
        log=log,
    )
    assert names["trainer"].global_step == STEPS
    # What a loop logs was read; a loop that logs nothing says nothing.
    check(names["training"].certificate(), steps_with_numbers_read=STEPS if log else None)
    assert set(vars(names["model"])) & {"forward", "training_step", "log"} == set()


def test_a_module_of_lightning_without_a_forward_gives_losses_of_rows() -> None:
    from discreet.integrations.lightning import PrivateTraining

    changes = dict(list(PRIVATE_AUTOENCODER.items())[1:])
    given = {"PrivateTraining": PrivateTraining, "plan": plan(), "data": pictures()}
    with pytest.raises(InvalidValue, match="one loss for each row"):
        run(AUTOENCODER, changes, quiet=QUIET, pieces=None, log=False, **given)


CLASSIFIER = """
import lightning as L
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, images):
        return self.network(images)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = cross_entropy(self(images), labels)
        if log:
            self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = L.Trainer(max_epochs=1, **quiet)
trainer.fit(Classifier(), DataLoader(data, batch_size=8, shuffle=True))
"""


@pytest.mark.parametrize("log", [True, False])
def test_a_module_of_lightning_whose_loss_is_a_mean(log: bool) -> None:
    from discreet.integrations.lightning import PrivateTraining

    changes = dict(list(PRIVATE_AUTOENCODER.items())[1:])
    given = {"PrivateTraining": PrivateTraining, "plan": plan(), "data": pictures()}
    names = run(CLASSIFIER, changes, quiet=QUIET, pieces=None, log=log, **given)
    check(names["training"].certificate(), steps_with_numbers_read=STEPS if log else None)


@pytest.mark.parametrize("setting", [{"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}])
def test_settings_of_lightning_that_contradict_a_plan(setting: dict[str, Any]) -> None:
    from discreet.integrations.lightning import PrivateTraining

    changes = dict(list(PRIVATE_AUTOENCODER.items())[1:])
    given = {"PrivateTraining": PrivateTraining, "plan": plan(), "data": pictures()}
    with pytest.raises(InvalidValue, match=next(iter(setting))):
        run(CLASSIFIER, changes, quiet=QUIET | setting, pieces=None, log=False, **given)


# --- accelerate ------------------------------------------------------------------------------

LOOP = """
from accelerate import Accelerator

accelerator = Accelerator()
loader = DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=9)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
model.train()
passes = 0
for epoch in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        passes += 1
"""


@pytest.fixture(autouse=True)
def accelerate_as_new() -> None:
    """Its state is one for the process, and holds the precision of the trainer before."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("steps", [3, 5])
def test_a_loop_of_accelerate(steps: int) -> None:
    """Three steps are an epoch here; of five, the second epoch takes two."""
    from torch.utils.data import DataLoader

    changes = {
        "from accelerate import Accelerator": "from discreet.integrations.accelerate import "
        "PrivateAccelerator",
        "accelerator = Accelerator()": "accelerator = PrivateAccelerator(plan, max_physical=3)",
    }
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    given = {"torch": torch, "nn": nn, "DataLoader": DataLoader, "data": pictures()}
    names = run(LOOP, changes, model=model, plan=plan(steps=steps), **given)
    certificate = names["accelerator"].certificate()
    assert certificate.run["steps_taken"] == steps
    assert certificate.loss == plan(steps=steps).loss
    assert names["scheduler"].last_epoch == steps
    assert names["passes"] > steps  # in pieces


@pytest.mark.parametrize(
    "setting", [{"gradient_accumulation_steps": 2}, {"mixed_precision": "bf16"}]
)
def test_settings_of_accelerate_that_contradict_a_plan(setting: dict[str, Any]) -> None:
    from discreet.integrations.accelerate import PrivateAccelerator

    with pytest.raises(InvalidValue, match=next(iter(setting))):
        PrivateAccelerator(plan(), **setting)


def test_an_accelerator_says_what_it_does_not_do() -> None:
    from discreet.integrations.accelerate import PrivateAccelerator

    accelerator = PrivateAccelerator(plan())
    with pytest.raises(NotApplicable, match="clips each example"):
        accelerator.clip_grad_norm_([], 1.0)
    with pytest.raises(NotApplicable, match="nothing was trained"):
        accelerator.certificate()
