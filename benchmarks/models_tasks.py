"""The models of `make bench-models`: those that people fine-tune, at sizes that suit a CPU.

Their packages are those of the zoo (tests/zoo/models.py), which also says how torchvision is
imported beside this torch. Nothing is imported before a model is made.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from training_models import MaskedBert, Task, images, tokens

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
WORDS = 5_000


def transformer(name: str, config: str, **options: Any) -> nn.Module:
    from zoo import models as zoo

    zoo.allow_torchvision()
    return zoo.transformer(name, config, **options)


class Logits(nn.Module):
    """A model of ``transformers`` by what it predicts; ``name`` is that of its input."""

    def __init__(self, inner: nn.Module, name: str) -> None:
        super().__init__()
        self.inner, self.name = inner, name

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.inner(**{self.name: inputs}).logits
        return logits


class NextWords(nn.Module):
    """The mean loss of a row's words; over rows their mean, or none with ``reduction="none"``."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, words: Tensor) -> Tensor:
        each = F.cross_entropy(logits.transpose(1, 2), words, reduction="none").mean(1)
        return each.mean() if self.reduction == "mean" else each


def gpt2(*, width: int, layers: int, heads: int, words: int, length: int) -> nn.Module:
    sizes = {"n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": length}
    still = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    made = transformer("GPT2LMHeadModel", "GPT2Config", vocab_size=words, **sizes, **still, **ends)
    return Logits(made, "input_ids")


def adapted() -> nn.Module:
    from zoo import models as zoo

    zoo.allow_torchvision()
    model = MaskedBert(width=256, layers=4, heads=4, words=WORDS)
    model.inner = zoo.adapted(model.inner, ["query", "value"], task_type="SEQ_CLS")
    return model


def masked_bert() -> nn.Module:
    from zoo import models as zoo

    zoo.allow_torchvision()
    return MaskedBert(width=256, layers=4, heads=4, words=WORDS)


def vit() -> nn.Module:
    sizes = {
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "image_size": 32,
        "patch_size": 4,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    made = transformer("ViTForImageClassification", "ViTConfig", num_labels=10, **sizes)
    return Logits(made, "pixel_values")


def resnet18() -> nn.Module:
    from zoo import models as zoo

    zoo.allow_torchvision()
    return zoo.from_torchvision("resnet18", norm_layer=zoo.groups)


class Means(nn.Module):
    """The network of Opacus' example on IMDB at its own sizes."""

    def __init__(self, words: int = 30_522) -> None:
        super().__init__()
        self.emb = nn.Embedding(words, 16)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, words: Tensor) -> Tensor:
        pooled = self.pool(self.emb(words).transpose(1, 2)).squeeze(2)
        outputs: Tensor = self.fc2(F.relu(self.fc1(pooled)))
        return outputs


class Names(nn.Module):
    """The network of Opacus' char-LSTM example at its own sizes, with torch's layer."""

    def __init__(self, letters: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, 64)
        self.lstm = nn.LSTM(64, 128, batch_first=True)
        self.out_layer = nn.Linear(128, 18)

    def forward(self, letters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(letters))
        outputs: Tensor = self.out_layer(states[:, -1])
        return outputs


LORA = Task("LoRA in BERT d256, mask", 16, 1.1, 1.0, adapted, tokens(WORDS, 64), classes=2)
GPT2 = Task(
    "GPT-2 d128 T64",
    16,
    1.25,
    1.0,
    lambda: gpt2(width=128, layers=4, heads=4, words=WORDS, length=64),
    tokens(WORDS, 64),
    classes=WORDS,
    loss=NextWords,
    labels=lambda examples: (examples, 64),
)
BROUGHT = (
    LORA,
    Task("BERT d256 T64, mask", 16, 1.25, 1.0, masked_bert, tokens(WORDS, 64), classes=2),
    GPT2,
    Task("ViT d128, 32x32", 32, 1.25, 1.0, vit, images(3, 32, 32)),
    Task("ResNet-18, GroupNorm, 32x32", 16, 1.6, 1.0, resnet18, images(3, 32, 32), classes=3),
    Task("IMDB example", 64, 1.6, 1.0, Means, tokens(30_522, 256), classes=2, burst=12),
    Task("char-LSTM", 128, 1.6, 1.0, Names, tokens(256, 12), classes=18, burst=8),
)
# 25 million parameters, of which memory is measured.
LARGE_GPT2 = replace(
    GPT2,
    name="GPT-2 of 25 million parameters, T256",
    batch=8,
    make=lambda: gpt2(width=384, layers=6, heads=6, words=37_000, length=256),
    inputs=tokens(37_000, 256),
    classes=37_000,
    labels=lambda examples: (examples, 256),
)
