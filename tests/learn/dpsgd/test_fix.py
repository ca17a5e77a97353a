"""fix() replaces what mixes examples, faithfully, and tells what it changed (S21)."""

import copy

import pytest
import torch
from torch import nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._fix import fix
from discreet.learn.dpsgd.isolation import TensorSpec, check_isolation


def by_hand(x, groups, weight, bias, eps):
    """Group normalisation, written out."""
    rows, channels = x.shape[:2]
    values = x.reshape(rows, groups, -1)
    mean = values.mean(2, keepdim=True)
    spread = ((values - mean) ** 2).mean(2, keepdim=True)
    normal = ((values - mean) / (spread + eps) ** 0.5).reshape(x.shape)
    shape = (1, channels) + (1,) * (x.dim() - 2)
    return normal * weight.reshape(shape) + bias.reshape(shape)


@pytest.mark.parametrize(
    ("layer", "shape", "groups"),
    [
        (nn.BatchNorm1d(64, eps=1e-3), (5, 64), 4),
        (nn.BatchNorm1d(64), (5, 64, 7), 4),
        (nn.BatchNorm1d(7), (5, 7), 1),
        (nn.BatchNorm2d(64), (5, 64, 3, 2), 16),
        (nn.BatchNorm2d(256), (5, 256, 1, 1), 32),
        (nn.BatchNorm2d(3), (5, 3, 4, 4), 1),
        (nn.BatchNorm2d(48, eps=1e-2), (5, 48, 4, 4), 12),
        (nn.BatchNorm2d(1), (5, 1, 4, 4), 1),
        (nn.BatchNorm3d(8), (5, 8, 2, 2, 2), 2),
        (nn.SyncBatchNorm(64), (5, 64, 3), 16),
    ],
)
def test_batch_norm_becomes_group_norm_with_its_own_values(layer, shape, groups):
    torch.manual_seed(0)
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    fixed = fix(nn.Sequential(layer))
    new = fixed.model[0]
    assert isinstance(new, nn.GroupNorm)
    assert (new.num_groups, new.num_channels, new.eps) == (groups, shape[1], layer.eps)
    x = 3.0 * torch.randn(shape) + 1.0
    expected = by_hand(x, groups, layer.weight, layer.bias, layer.eps)
    assert torch.allclose(new(x), expected, atol=1e-5)
    assert torch.equal(new.train()(x), new.eval()(x)), "the same in training and in inference"
    assert torch.equal(new(x)[:2], new(x[:2])), "for every batch size"


def test_no_group_is_so_small_that_it_loses_its_numbers():
    for channels in range(2, 300):
        vector = fix(nn.Sequential(nn.BatchNorm1d(channels))).model[0]
        image = fix(nn.Sequential(nn.BatchNorm2d(channels))).model[0]
        for new, least in ((vector, 16), (image, 4)):
            assert channels % new.num_groups == 0
            assert 1 <= new.num_groups <= 32
            assert new.num_groups == 1 or channels // new.num_groups >= least
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(1))
    assert not torch.allclose(fix(nn.Sequential(nn.BatchNorm1d(2))).model[0](x), torch.zeros(4, 2))


def test_the_given_model_is_not_touched():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    before = copy.deepcopy(model.state_dict())
    fixed = fix(model)
    assert isinstance(model[1], nn.BatchNorm1d)
    assert list(model.state_dict()) == list(before)
    fixed.model[1].weight.data.fill_(7.0)
    assert torch.equal(model[1].weight, torch.ones(8))


def test_flags_types_and_names_are_kept():
    model = nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)).double().eval()
    model[0].weight.requires_grad_(False)
    new = fix(model).model
    assert not new.training
    assert not new[0].training
    assert (new[0].weight.requires_grad, new[0].bias.requires_grad) == (False, True)
    assert new[0].weight.dtype == torch.float64
    assert new[1].weight is None
    assert list(new.state_dict()) == ["0.weight", "0.bias"]
    assert new(torch.ones(1, 8, 2, 2, dtype=torch.float64)).dtype == torch.float64


def test_nested_shared_and_tied_modules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleDict({"norm": nn.BatchNorm1d(8), "rest": nn.Linear(8, 8)})
            self.again = self.inner["norm"]
            self.tied = nn.BatchNorm1d(8)
            self.tied.weight = self.inner["norm"].weight

        def forward(self, x):
            return self.tied(self.again(self.inner["rest"](self.inner["norm"](x))))

    fixed = fix(Net())
    model = fixed.model
    assert model.again is model.inner["norm"]
    assert model.tied.weight is model.inner["norm"].weight
    assert {change.module for change in fixed.changes} == {"inner.norm", "again", "tied"}
    assert check_isolation(model, inputs=TensorSpec((8,))).ok


@pytest.mark.parametrize("kind", [nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d])
def test_instance_norm_loses_only_its_running_statistics(kind):
    shape = {nn.InstanceNorm1d: (2, 4, 9), nn.InstanceNorm2d: (2, 4, 3, 3)}.get(
        kind, (2, 4, 3, 3, 3)
    )
    layer = kind(4, affine=True, track_running_stats=True, eps=1e-3)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(2))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    fixed = fix(layer)
    assert type(fixed.model) is kind
    assert torch.allclose(fixed.model(x), layer(x), atol=1e-6), "training: nothing changes"
    assert torch.equal(fixed.model.eval()(x), fixed.model.train()(x))
    assert list(fixed.model.state_dict()) == ["weight", "bias"]
    assert fixed.changes[0].dropped == ("running_mean", "running_var", "num_batches_tracked")
    untouched = kind(4, affine=True)
    assert fix(untouched).changes == ()


def test_the_probe_agrees_before_and_after():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.InstanceNorm2d(8, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(8 * 36, 4),
        nn.BatchNorm1d(4),
    )
    image = TensorSpec((3, 8, 8))
    report = check_isolation(model, inputs=image)
    assert {one.module for one in report.culprits} == {"1", "3", "6"}
    fixed = fix(model)
    assert [change.module for change in fixed.changes] == ["1", "3", "6"]
    assert check_isolation(fixed.model, inputs=image).ok
    gone = ", dropping running_mean, running_var, num_batches_tracked"
    assert fixed.explain().splitlines() == [
        f"1: BatchNorm2d(8) -> GroupNorm(2, 8){gone}",
        f"3: InstanceNorm2d(8) with running statistics -> InstanceNorm2d(8){gone}",
        f"6: BatchNorm1d(4) -> GroupNorm(1, 4){gone}",
    ]


@pytest.mark.parametrize("shape", [(3, 8), (3, 8, 5), (3, 8, 4, 4), (3, 8, 2, 2, 2)])
def test_frozen_batch_norm_is_the_original_in_inference_in_any_mode(shape):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    torch.manual_seed(1)
    layer = kind(8, eps=1e-3, affine=len(shape) != 3)
    layer(2.0 * torch.randn(9, *shape[1:]) + 1.0)  # gives it running statistics
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    model = nn.Sequential(layer)
    fixed = fix(model, batch_norm="frozen")
    x = torch.randn(shape)
    expected = model.eval()(x)
    assert torch.allclose(fixed.model.train()(x), expected, atol=1e-5)
    assert torch.allclose(fixed.model.eval()(x), expected, atol=1e-5)
    assert fixed.changes[0].dropped == ("num_batches_tracked",)
    kept = [key for key in model.state_dict() if "num_batches" not in key]
    assert sorted(fixed.model.state_dict()) == sorted(kept)
    assert check_isolation(fixed.model, inputs=TensorSpec(shape[1:])).ok


def test_frozen_batch_norm_needs_statistics_and_leaves_instance_norm_to_the_usual_rule():
    with pytest.raises(NotApplicable, match="no running statistics"):
        fix(nn.BatchNorm1d(4, track_running_stats=False), batch_norm="frozen")
    fixed = fix(nn.InstanceNorm1d(4, track_running_stats=True), batch_norm="frozen")
    assert isinstance(fixed.model, nn.InstanceNorm1d)
    with pytest.raises(InvalidValue):
        fix(nn.Linear(2, 2), batch_norm="layer")


def test_nothing_to_do():
    fixed = fix(nn.Linear(2, 2))
    assert (fixed.changes, fixed.left) == ((), ())
    assert fixed.explain() == "nothing had to be replaced"


def test_what_it_does_not_know_is_left_and_named():
    class Own(nn.BatchNorm1d):
        def forward(self, x):
            return 2 * super().forward(x)

    hooked = nn.BatchNorm1d(4)
    hooked.register_forward_hook(lambda *_: None)
    fixed = fix(nn.Sequential(Own(4), hooked))
    assert fixed.changes == ()
    assert len(fixed.left) == 2
    assert "0 (Own)" in fixed.explain()
    assert "hooks" in fixed.explain()


def test_what_has_no_substitute_is_refused():
    with pytest.raises(NotApplicable, match="single number"):
        fix(nn.Sequential(nn.BatchNorm1d(1)))
    with pytest.raises(NotApplicable, match="not initialised"):
        fix(nn.Sequential(nn.LazyBatchNorm1d()))
    with pytest.raises(InvalidValue):
        fix("model")


class NormAct(nn.BatchNorm2d):
    """As packages write it: batch normalisation, then what is inside."""

    def __init__(self, channels: int, *, scaled: float = 1.0) -> None:
        super().__init__(channels)
        self.drop, self.act, self.scaled = nn.Identity(), nn.SiLU(), scaled

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # torch's name
        return self.act(self.drop(super().forward(input))) * self.scaled


@pytest.mark.parametrize("batch_norm", ["group", "frozen"])
def test_a_batch_norm_that_hands_on_to_its_children_is_replaced(batch_norm):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), NormAct(8))
    fixed = fix(model, batch_norm=batch_norm)
    assert not fixed.left
    x = torch.linspace(-1, 1, 2 * 3 * 36).reshape(2, 3, 6, 6)
    inner = fixed.model[0](x)
    plain = nn.functional.group_norm(inner, 2, eps=1e-5) if batch_norm == "group" else inner
    expected = nn.functional.silu(plain)
    torch.testing.assert_close(fixed.model(x), expected, atol=1e-4, rtol=1e-4)
    names = [name for name in model.state_dict() if "running" not in name and "batches" not in name]
    assert set(names) <= set(fixed.model.state_dict())


def test_one_that_does_more_is_left_alone():
    fixed = fix(nn.Sequential(NormAct(8, scaled=2.0)))
    assert "its children in order" in fixed.explain()
