"""Models of packages that nobody here wrote: small configurations, random weights, still dropout.

Each entry makes a model, one batch for it, and a way to read losses, one for each example, from
what the model gives.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine

ROWS, TIME, WORDS = 4, 6, 50
Batch = dict[str, Tensor] | tuple[Tensor, ...]
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TEXT = {**TINY, "vocab_size": WORDS, "max_position_embeddings": 40}


@functools.cache
def allow_torchvision() -> None:
    """Name the operators that torchvision registers shapes for: its wheel is not for this torch.

    None of the models here calls one of them.
    """
    library = torch.library.Library("torchvision", "DEF")
    named = ["nms", "qnms", "roi_align", "qroi_align", "ps_roi_align", "roi_pool", "ps_roi_pool"]
    named += [f"_{one}_backward" for one in ("roi_align", "ps_roi_align", "roi_pool")]
    named += ["_ps_roi_pool_backward", "deform_conv2d", "_deform_conv2d_backward"]
    for name in named:
        library.define(f"{name}(Tensor x) -> Tensor")
    allow_torchvision.library = library  # type: ignore[attr-defined]  # it ends with its object


def text() -> dict[str, Tensor]:
    """Rows of different lengths, padded, with their mask."""
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(5, WORDS, (ROWS, TIME), generator=draws)
    mask = torch.ones(ROWS, TIME, dtype=torch.int64)
    for row, length in enumerate((6, 3, 5, 2)):
        ids[row, length:], mask[row, length:] = 1, 0
    return {"input_ids": ids, "attention_mask": mask}


def images(*shape: int) -> tuple[Tensor]:
    return (torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(0)),)


def characters() -> tuple[Tensor]:
    return (torch.randint(WORDS, (ROWS, TIME), generator=torch.Generator().manual_seed(0)),)


def still(model: nn.Module) -> nn.Module:
    """Turn off what is drawn at random, so that an example gives the same in any batch."""
    for module in model.modules():
        for name in ("dropout", "attention_dropout", "drop_prob", "attn_drop"):
            if isinstance(vars(module).get(name), float):
                setattr(module, name, 0.0)
        if type(module).__name__ in ("Dropout", "Dropout1d", "Dropout2d", "StochasticDepth"):
            module.p = 0.0  # type: ignore[assignment]
    return model


def transformer(name: str, config: str, **options: Any) -> nn.Module:
    """Make a model of ``transformers`` by the names of its class and of its configuration."""
    import transformers

    made: nn.Module = getattr(transformers, name)(getattr(transformers, config)(**options))
    return made


def from_torchvision(name: str, **options: Any) -> nn.Module:
    import torchvision

    made: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=3, **options)
    return made


def small_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    made: nn.Module = ConvNeXt(
        [CNBlockConfig(16, 32, 2), CNBlockConfig(32, None, 2)], num_classes=3
    )
    return made


def from_timm(name: str, **options: Any) -> nn.Module:
    import timm

    made: nn.Module = timm.create_model(name, pretrained=False, num_classes=3, **options)
    return made


def groups(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def fixed(model: nn.Module) -> nn.Module:
    """Replace what mixes examples, as the documentation advises."""
    from discreet.learn import dpsgd

    return dpsgd.fix(model).model


def bert(**options: Any) -> nn.Module:
    return transformer("BertForSequenceClassification", "BertConfig", **TEXT, **options)


def gpt2() -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
    ends = {"bos_token_id": 2, "eos_token_id": 3}
    return transformer("GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, **sizes, **ends)


def distilbert() -> nn.Module:
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    return transformer(
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        vocab_size=WORDS,
        max_position_embeddings=40,
        **sizes,
    )


def llama(**options: Any) -> nn.Module:
    return transformer("LlamaForCausalLM", "LlamaConfig", **TEXT, num_key_value_heads=1, **options)


def mixtral() -> nn.Module:
    experts = {"num_local_experts": 3, "num_experts_per_tok": 2, "num_key_value_heads": 1}
    return transformer("MixtralForCausalLM", "MixtralConfig", **TEXT, **experts)


def t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return transformer("T5ForConditionalGeneration", "T5Config", vocab_size=WORDS, **sizes)


def seq2seq() -> nn.Module:
    """T5 with what it needs to shift labels by itself."""
    model = t5()
    model.config.decoder_start_token_id = model.config.pad_token_id = 0
    return model


def two_texts() -> dict[str, Tensor]:
    given = text()
    return {**given, "decoder_input_ids": given["input_ids"][:, :3].clone()}


def vit() -> nn.Module:
    return transformer("ViTForImageClassification", "ViTConfig", **TINY, image_size=8, patch_size=4)


def pixels() -> dict[str, Tensor]:
    return {"pixel_values": images(3, 8, 8)[0]}


def adapted(model: nn.Module, targets: list[str], **options: Any) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=targets, lora_dropout=0.0, **options)
    made: nn.Module = get_peft_model(model, config)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:  # zeros would hide everything
            nn.init.normal_(parameter)
    return made


def checkpointed(model: nn.Module) -> nn.Module:
    """Have the layers of a model of ``transformers`` run again in the backward pass."""
    from discreet.learn import dpsgd

    options = {"use_reentrant": False, "context_fn": dpsgd.checkpoint_contexts}
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)  # type: ignore[operator]
    return model


def frozen_backbone() -> nn.Module:
    model = bert()
    model.bert.requires_grad_(False)  # type: ignore[operator, union-attr]
    return model


class Small(nn.Module):
    """The convolutions of Opacus' tutorial on MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv1(x)), 2, 1)
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2, 1)
        x = nn.functional.relu(self.fc1(x.view(-1, 32 * 4 * 4)))
        outputs: Tensor = self.fc2(x)
        return outputs


def stages() -> nn.Module:
    """The convolutions of Opacus' example on CIFAR-10."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise((3, 32, 64, 64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2, stride=2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(128, 10))


class Reviews(nn.Module):
    """The network of Opacus' example on IMDB: an embedding, an LSTM, the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.fc1 = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x, _ = self.lstm(self.emb(x))
        outputs: Tensor = self.fc1(x[:, -1, :])
        return outputs


class Means(nn.Module):
    """The smaller network of Opacus' example on IMDB: the mean of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(WORDS, 16)
        self.fc1 = nn.Linear(16, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.emb(x).transpose(1, 2)
        x = nn.functional.avg_pool1d(x, x.shape[2]).squeeze(2)
        outputs: Tensor = self.fc2(nn.functional.relu(self.fc1(x)))
        return outputs


class Names(nn.Module):
    """The network of Opacus' char-LSTM example: states are made inside, of zeros."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        self.lstm = layer(16, 16, num_layers=2, batch_first=True)
        self.out_layer = nn.Linear(16, 18)

    def forward(self, x: Tensor) -> Tensor:
        states = torch.zeros(2, x.shape[0], 16, dtype=self.out_layer.weight.dtype)
        x, _ = self.lstm(self.embedding(x), (states, states.clone()))
        outputs: Tensor = self.out_layer(x[:, -1, :])
        return outputs


class Discriminator(nn.Module):
    """The discriminator of Opacus' DCGAN example, with the group norms that it uses there."""

    def __init__(self) -> None:
        super().__init__()
        width = 8
        layers: list[nn.Module] = [nn.Conv2d(1, width, 4, 2, 1, bias=False)]
        layers.append(nn.LeakyReLU(0.2, inplace=True))
        for step in (1, 2):
            layers.append(nn.Conv2d(width * step, width * step * 2, 4, 2, 1, bias=False))
            layers.append(nn.GroupNorm(min(32, width * step * 2), width * step * 2))
            layers.append(nn.LeakyReLU(0.2, inplace=True))
        layers += [nn.Conv2d(width * 4, 1, 3, 1, 0, bias=False), nn.Sigmoid()]
        self.main = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.main(x)
        return outputs.view(-1, 1).squeeze(1)


class Tied(nn.Module):
    """A language model whose last layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.inner = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]).to(self.words.weight)
        outputs: Tensor = self.head(self.inner(self.words(x), src_mask=mask, is_causal=True))
        return outputs


@dataclass(frozen=True)
class Entry:
    """One model of the zoo."""

    name: str
    package: str
    make: Callable[[], nn.Module]
    batch: Callable[[], Batch] = text
    double: bool = True  # else in its own precision
    by_example: tuple[str, ...] = ()  # modules that may run example by example
    through_loop: bool = True  # else only the engine: the trial of the larger ones takes a minute

    def model(self) -> nn.Module:
        """Make the model; transformers and timm import torchvision where it is there."""
        allow_torchvision()
        torch.manual_seed(0)
        return self.make()

    @property
    def origin(self) -> str:
        return f"{self.package} {version(self.package).partition('+')[0]}"


def _entries() -> list[Entry]:
    hf, vision, peft, opacus = "transformers", "torchvision", "peft", "opacus"
    linear = ["query", "value"]

    def dp_lstm(*sizes: int, **options: Any) -> nn.Module:
        from opacus.layers import DPLSTM

        made: nn.Module = DPLSTM(*sizes, **options)
        return made

    resnet = functools.partial(from_torchvision, "resnet18", norm_layer=groups)
    return [
        Entry("BERT", hf, bert),
        Entry("BERT, eager attention", hf, lambda: bert(attn_implementation="eager")),
        Entry("BERT, frozen but for its head", hf, frozen_backbone),
        Entry(
            "RoBERTa",
            hf,
            lambda: transformer(
                "RobertaForSequenceClassification", "RobertaConfig", **TEXT, pad_token_id=1
            ),
        ),
        Entry("DistilBERT", hf, distilbert),
        Entry("GPT-2", hf, gpt2),
        Entry("Llama", hf, llama),
        Entry("Llama, tied", hf, lambda: llama(tie_word_embeddings=True)),
        Entry("Mixtral", hf, mixtral, double=False, by_example=("mlp.experts",)),
        Entry("T5", hf, t5, two_texts),
        Entry("ViT", hf, vit, pixels),
        Entry("BERT, checkpointed layers", hf, lambda: checkpointed(bert())),
        Entry("GPT-2, checkpointed layers", hf, lambda: checkpointed(gpt2())),
        Entry("Llama, checkpointed layers", hf, lambda: checkpointed(llama())),
        Entry("LoRA in BERT", peft, lambda: adapted(bert(), linear, task_type="SEQ_CLS")),
        Entry("LoRA in GPT-2", peft, lambda: adapted(gpt2(), ["c_attn"], fan_in_fan_out=True)),
        Entry("LoRA in Llama", peft, lambda: adapted(llama(), ["q_proj", "v_proj"])),
        Entry("DoRA in BERT", peft, lambda: adapted(bert(), linear, use_dora=True)),
        Entry("ResNet-18, GroupNorm", vision, resnet, lambda: images(3, 32, 32)),
        Entry(
            "ResNet-18 through fix",
            vision,
            lambda: fixed(from_torchvision("resnet18")),
            lambda: images(3, 32, 32),
            through_loop=False,
        ),
        Entry(
            "ConvNeXt, two stages",
            vision,
            small_convnext,
            lambda: images(3, 32, 32),
        ),
        Entry(
            "MobileNet v3 through fix",
            vision,
            lambda: fixed(from_torchvision("mobilenet_v3_small")),
            lambda: images(3, 32, 32),
        ),
        Entry(
            "ViT tiny",
            "timm",
            lambda: from_timm("vit_tiny_patch16_224", img_size=32, depth=2),
            lambda: images(3, 32, 32),
        ),
        Entry(
            "Swin tiny",
            "timm",
            lambda: from_timm("swin_tiny_patch4_window7_224", img_size=56, depths=(2, 2)),
            lambda: images(3, 56, 56),
        ),
        Entry(
            "ConvNeXt atto",
            "timm",
            lambda: from_timm("convnext_atto", depths=(2, 2, 2, 2)),
            lambda: images(3, 32, 32),
        ),
        Entry(
            "ResNet-18 through fix",
            "timm",
            lambda: fixed(from_timm("resnet18")),
            lambda: images(3, 32, 32),
            through_loop=False,
        ),
        Entry(
            "EfficientNet through fix",
            "timm",
            lambda: fixed(from_timm("efficientnet_lite0")),
            lambda: images(3, 32, 32),
        ),
        Entry("MNIST tutorial", opacus, Small, lambda: images(1, 28, 28)),
        Entry("CIFAR example", opacus, stages, lambda: images(3, 32, 32)),
        Entry("IMDB example, LSTM", opacus, Reviews, characters),
        Entry("IMDB tutorial, means", opacus, Means, characters),
        Entry("char-LSTM, torch's LSTM", opacus, lambda: Names(nn.LSTM), characters),
        Entry(
            "char-LSTM, DPLSTM",
            opacus,
            lambda: Names(dp_lstm),
            characters,
            by_example=("lstm",),
        ),
        Entry("DCGAN discriminator", opacus, Discriminator, lambda: images(1, 24, 24)),
        Entry("a tied language model", "torch", Tied, characters),
    ]


ZOO = _entries()


def cut(batch: Batch, row: int) -> Batch:
    """One example, as a batch."""
    if isinstance(batch, dict):
        return {name: one[row : row + 1] for name, one in batch.items()}
    return tuple(one[row : row + 1] for one in batch)


def in_type(batch: Batch, dtype: torch.dtype) -> Batch:
    def cast(one: Tensor) -> Tensor:
        return one.to(dtype) if one.is_floating_point() else one

    if isinstance(batch, dict):
        return {name: cast(one) for name, one in batch.items()}
    return tuple(map(cast, batch))


def outputs_of(model: nn.Module, batch: Batch) -> Tensor:
    """What the losses are made of: the tensor that a model gives, or its logits."""
    found = model(**batch) if isinstance(batch, dict) else model(*batch)
    outputs: Tensor = found if isinstance(found, Tensor) else found.logits
    return outputs


@dataclass(frozen=True)
class Found:
    """What the engine made of a model: its largest error, and what ran example by example."""

    error: float
    parameters: int
    tensors: int
    by_example: tuple[str, ...]


def measure(entry: Entry) -> Found:
    """Hold norms and a weighted sum against the examples one by one, relative to the largest entry.

    Parameters whose gradients are rounding alone (biases of keys) are held against all others.
    """
    dtype = torch.float64 if entry.double else torch.float32
    model = still(entry.model()).to(dtype).train()
    batch = in_type(entry.batch(), dtype)
    weights = torch.rand(1, ROWS, dtype=dtype)
    engine = GradientEngine(model)
    with engine.recording(ROWS):
        outputs_of(model, batch).sin().sum().backward()  # type: ignore[no-untyped-call]
        norms, sums = engine.squared_norms()[0], engine.clipped_sum(weights)
    engine.detach()
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    expected = {name: torch.zeros_like(one) for name, one in named.items()}
    error = 0.0
    for row in range(ROWS):
        model.zero_grad()
        outputs_of(model, cut(batch, row)).sin().sum().backward()  # type: ignore[no-untyped-call]
        square = 0.0
        for name, one in named.items():
            if one.grad is not None:
                square += float(one.grad.square().sum())
                expected[name] += weights[0, row] * one.grad
        error = max(error, abs(float(norms[row]) - square) / square)
    largest = max(float(one.abs().max()) for one in expected.values())
    for name, one in expected.items():
        scale = max(float(one.abs().max()), 1e-6 * largest)
        error = max(error, float((sums[name] - one).abs().max()) / scale)
    by_example = tuple(name for name, rules in engine.report.items() if "torch.func" in rules)
    size = sum(one.numel() for one in named.values())
    return Found(error, size, len(named), by_example)


def row_of(entry: Entry, found: Found) -> str:
    """The line of a model in docs/models.md."""
    how = "rules alone"
    if found.by_example:
        inner = " and ".join(f"`{name}`" for name in entry.by_example)
        how = f"rules; {inner} example by example"
    return f"| {entry.name} | {entry.origin} | {found.parameters:,} | {how} |"
