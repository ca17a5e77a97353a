"""Models of the package transformers, small and random: all by rules, none example by example.

Needs the extra ``models``, which ``make test-slow`` installs.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet.learn.dpsgd.engine import GradientEngine

pytestmark = pytest.mark.slow
ROWS, TIME, WORDS = 4, 6, 50
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TEXT = {**TINY, "vocab_size": WORDS, "max_position_embeddings": 40}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def text(time: int = TIME) -> dict[str, Tensor]:
    """Rows of different lengths, padded, with their mask."""
    draws = torch.Generator().manual_seed(0)
    ids = torch.randint(5, WORDS, (ROWS, TIME), generator=draws)
    mask = torch.ones(ROWS, TIME, dtype=torch.int64)
    for row, length in enumerate((6, 3, 5, 2)):
        ids[row, length:], mask[row, length:] = 1, 0
    return {"input_ids": ids[:, :time], "attention_mask": mask[:, :time]}


def bert(time: int = TIME, **options: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**TEXT, **STILL, **options)), text(time)


def roberta() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return RobertaForSequenceClassification(RobertaConfig(**TEXT, **STILL, pad_token_id=1)), text()


def distilbert() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=WORDS,
        dim=16,
        n_layers=2,
        n_heads=2,
        hidden_dim=24,
        max_position_embeddings=40,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
    )
    return DistilBertForSequenceClassification(config), text()


def gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=40,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=2,
        eos_token_id=3,
    )
    return GPT2LMHeadModel(config), text()


def llama() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**TEXT, num_key_value_heads=1)), text()


def t5() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
    )
    given = text()
    return T5ForConditionalGeneration(config), {
        **given,
        "decoder_input_ids": given["input_ids"][:, :3],
    }


def vit() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(**TINY, **STILL, image_size=8, patch_size=4)
    images = torch.randn(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return ViTForImageClassification(config), {"pixel_values": images.double()}


def mixtral() -> tuple[nn.Module, dict[str, Tensor]]:
    from transformers import MixtralConfig, MixtralForCausalLM

    experts = {"num_local_experts": 3, "num_experts_per_tok": 2, "num_key_value_heads": 1}
    return MixtralForCausalLM(MixtralConfig(**TEXT, **experts)), text()


@pytest.mark.filterwarnings("ignore")  # those of the package
def test_mixtral_in_its_own_precision() -> None:
    """Its grouped products have no double kernel: in float32, to 2e-4 of the largest entry.

    Tokens are sent to experts by their values, so the router and the experts run example by
    example. Sums of some hundred products in single precision are right to about 1e-5; the
    tolerance has room for an order that differs.
    """
    torch.manual_seed(0)
    model, inputs = mixtral()
    model = model.train()
    weights = torch.rand(1, ROWS)
    compare_with_single_examples(model, inputs, weights, tolerance=2e-4)


@pytest.mark.filterwarnings("ignore")  # those of the package
@pytest.mark.parametrize(
    "make",
    [
        bert,
        lambda: bert(attn_implementation="eager"),
        lambda: bert(time=ROWS),
        roberta,
        distilbert,
        gpt2,
        llama,
        t5,
        vit,
    ],
    ids=["bert", "eager", "as long as the batch", "roberta", "distilbert", "gpt2", "llama"]
    + ["t5", "vit"],
)
def test_clipped_sums_are_those_of_the_examples_one_by_one(make: Any) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model = model.double().train()
    weights = torch.rand(1, ROWS, dtype=torch.float64)
    report = compare_with_single_examples(model, inputs, weights, tolerance=1e-6)
    assert not [name for name, rules in report.items() if "torch.func" in rules]


def compare_with_single_examples(
    model: nn.Module, inputs: dict[str, Tensor], weights: Tensor, *, tolerance: float
) -> dict[str, Any]:
    """Hold the engine's norms and sums against one pass for each example; return its report."""
    engine = GradientEngine(model)
    with engine.recording(ROWS):
        model(**inputs).logits.sin().sum().backward()
        norms, found = engine.squared_norms()[0], engine.clipped_sum(weights)
    engine.detach()
    expected = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    for row in range(ROWS):
        model.zero_grad()
        alone = {name: one[row : row + 1] for name, one in inputs.items()}
        model(**alone).logits.sin().sum().backward()
        square = 0.0
        for name, one in model.named_parameters():
            if one.grad is not None:
                square += float(one.grad.square().sum())
                expected[name] += weights[0, row] * one.grad
        assert float(norms[row]) == pytest.approx(square, rel=tolerance)
    for name, one in expected.items():
        scale = max(float(one.abs().max()), 1e-6)
        assert float((found[name] - one).abs().max()) <= tolerance * scale, name
    return dict(engine.report)
