"""The models of the training benchmark, each with made-up public data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """A model, its batch size, and what one step may cost over plain SGD."""

    name: str
    batch: int
    most: float
    times_opacus: float
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    classes: int = 10
    burst: int = 4
    more_rounds: int = 1  # short steps vary more from round to round
    milliseconds: float | None = None  # over plain, where a ratio says little
    loss: Callable[..., nn.Module] = nn.CrossEntropyLoss  # one for each row, where not reduced
    labels: Callable[[int], tuple[int, ...]] = lambda examples: (examples,)  # their shape

    def data(self, examples: int) -> tuple[Tensor, Tensor]:
        """Return made-up inputs and labels."""
        torch.manual_seed(1)
        return self.inputs(examples), torch.randint(self.classes, self.labels(examples))


class Classifier(nn.Module):
    """A transformer encoder over tokens, averaged over the positions.

    ``spread`` repeats the positions for every example: Opacus ew needs an axis of examples
    everywhere, Opacus ghost contiguous ids.
    """

    spread = False

    def __init__(
        self,
        *,
        words: int = 5000,
        width: int = 128,
        heads: int = 4,
        layers: int = 2,
        steps: int = 64,
        hidden: int = 512,
        classes: int = 10,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(steps, width)
        layer = nn.TransformerEncoderLayer(width, heads, hidden, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        if self.spread:
            places = places.expand(tokens.shape).contiguous()
        return self.head(self.layers(self.words(tokens) + self.places(places)).mean(1))


def perceptron(*sizes: int) -> nn.Module:
    """Fully connected layers with ReLU between them, after flattening."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(sizes):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn() -> nn.Module:
    """The MNIST network with 26 thousand parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def group_cnn() -> nn.Module:
    """Five 3x3 convolutions with GroupNorm for 32x32 images, 280 thousand parameters."""
    layers: list[nn.Module] = []
    before = 3
    for width, pool in ((32, False), (64, True), (64, False), (128, True), (128, True)):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if pool else []
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class MaskedBert(nn.Module):
    """BERT of the package transformers, random, with an attention mask; a third is padding."""

    def __init__(
        self, *, width: int = 128, layers: int = 2, heads: int = 4, words: int = 5000
    ) -> None:
        super().__init__()
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=words,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * width,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.inner = BertForSequenceClassification(config)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.ones_like(tokens)
        mask[:, -(tokens.shape[1] // 3) :] = 0
        outputs: Tensor = self.inner(input_ids=tokens, attention_mask=mask).logits
        return outputs


class Adapted(nn.Module):
    """A frozen linear layer with a trained correction of low rank (LoRA)."""

    def __init__(self, inner: nn.Linear, *, rank: int = 8) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False)
        self.up = nn.Linear(rank, inner.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs) + self.up(self.down(inputs))
        return outputs


def adapted_bert() -> MaskedBert:
    """Return a BERT of 22 million parameters, of which adapters of queries and values train."""
    model = MaskedBert(width=384, layers=6, heads=12, words=30_522)
    model.inner.bert.requires_grad_(False)
    for layer in model.inner.bert.encoder.layer:
        attention = layer.attention.self
        attention.query, attention.value = Adapted(attention.query), Adapted(attention.value)
    return model


def images(*shape: int) -> Callable[[int], Tensor]:
    return lambda examples: torch.randn(examples, *shape)


def tokens(words: int, steps: int) -> Callable[[int], Tensor]:
    return lambda examples: torch.randint(words, (examples, steps))


LOGISTIC = Task(
    "logistic 784-10",
    256,
    1.7,
    1.7,
    lambda: nn.Sequential(nn.Linear(784, 10)),
    images(784),
    burst=60,
    more_rounds=3,
    milliseconds=0.35,
)
MLP = Task(
    "MLP 784-512-256-10",
    256,
    1.3,
    1.7,
    lambda: perceptron(784, 512, 256, 10),
    images(784),
    burst=12,
    more_rounds=3,
)
SMALL_CNN = Task("MNIST CNN", 256, 1.15, 1.0, small_cnn, images(1, 28, 28))
GROUP_CNN = Task("CIFAR CNN, GroupNorm", 64, 1.5, 1.0, group_cnn, images(3, 32, 32))
TRANSFORMER = Task("transformer d128 T64", 64, 1.3, 1.7, Classifier, tokens(5000, 64))
BERT = Task(
    "BERT d128 T64, mask", 32, 1.5, 1.0, lambda: MaskedBert(layers=2), tokens(5000, 64), classes=2
)
LARGE = Task(
    "MLP 784-2560-2560-512-10",
    1024,
    1.2,
    1.0,
    lambda: perceptron(784, 2560, 2560, 512, 10),
    images(784),
)

TASKS = (LOGISTIC, MLP, SMALL_CNN, GROUP_CNN, TRANSFORMER, BERT, LARGE)
