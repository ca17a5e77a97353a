"""Adam whose second moments do not count the noise (Tang, Shpilevskiy and Lecuyer 2023)."""

import pytest
import torch
from torch import nn

from discreet.errors import InvalidValue, NotApplicable
from discreet.learn import dpsgd
from discreet.privacy import Strategy
from learn.dpsgd.made_up_runs import data, each, network, plan


def moved(make, gradients):
    """What an optimizer makes of a vector of zeros by these gradients."""
    parameter = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = make([parameter])
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def test_without_noise_it_is_adam():
    quiet = plan(noise_multiplier=1e-9)
    torch.manual_seed(0)
    gradients = list(torch.randn(5, 40))
    ours = moved(lambda held: dpsgd.CorrectedAdam(held, quiet, lr=0.1), gradients)
    theirs = moved(lambda held: torch.optim.Adam(held, lr=0.1, eps=0.0), gradients)
    torch.testing.assert_close(ours, theirs)


def test_noise_does_not_shrink_its_steps():
    """A constant gradient moves it by nearly the learning rate, with noise of twice its size too.

    Adam's steps shrink to 1 / sqrt(5) of it. The draws are seeded.
    """
    noisy = plan(steps=300)  # noise of 1/16 a coordinate
    torch.manual_seed(0)
    signal = 1 / 32
    gradients = [signal + torch.randn(20_000) / 16 for _ in range(300)]
    half = noisy.clip_norm / 16 / 2

    def steps(make):
        ends = [moved(make, gradients[:count]) for count in (250, 300)]
        return float((ends[0] - ends[1]).mean()) / 50

    settings = {"lr": 1.0, "betas": (0.9, 0.99)}
    ours = steps(lambda held: dpsgd.CorrectedAdam(held, noisy, floor=half, **settings))
    theirs = steps(lambda held: torch.optim.Adam(held, **settings))
    assert theirs == pytest.approx(1 / 5**0.5, rel=0.05)
    assert 0.8 < ours <= 1.02


def test_phases_have_their_own_noise():
    phases = [dpsgd.Phase(2, 16), dpsgd.Phase(2, 8)]
    two = dpsgd.Plan(examples=64, phases=phases, clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = dpsgd.CorrectedAdam([parameter], two, betas=(0.0, 0.5))
    for _ in range(3):
        parameter.grad = torch.zeros(3)
        optimizer.step()
    expected = 0.5 * (1 / 8) ** 2 + 0.25 * (1 / 16) ** 2 + 0.125 * (1 / 16) ** 2
    assert float(optimizer.state[parameter]["noise"]) == pytest.approx(expected)


def test_it_trains_and_a_run_with_it_is_resumed(tmp_path):
    made = plan()
    model = network()
    before = [one.detach().clone() for one in model.parameters()]
    trainer = dpsgd.Trainer(
        model,
        made,
        optimizer=lambda held: dpsgd.CorrectedAdam(held, made, lr=0.1),
        loss=nn.CrossEntropyLoss(reduction="none"),
    )
    trained = trainer.fit(data(64), checkpoint=tmp_path / "run", checkpoint_every=1, progress=False)
    assert trained.certificate.run["steps_taken"] == made.steps
    assert all(
        not torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)
    )


def test_a_stopped_loop_goes_on_with_its_moments(tmp_path):
    made = plan()

    def go_on(until):
        model = network()
        optimizer = dpsgd.CorrectedAdam(model.parameters(), made, lr=0.1)
        private = dpsgd.make_private(model, optimizer, made, checkpoint=tmp_path / "run")
        for x, y in private.batches(data(64)):
            private.backward(each(model(x), y))
            optimizer.step()
            private.save()
            if private.steps_taken == until:
                break
        private.detach()
        return [int(one["step"]) for one in optimizer.state.values()]

    assert go_on(2) == [2] * 4
    assert go_on(4) == [4] * 4


def test_what_it_refuses():
    held = [nn.Parameter(torch.zeros(2))]
    with pytest.raises(InvalidValue, match="plan"):
        dpsgd.CorrectedAdam(held, 0.1)
    turns = {"sampler": "cyclic", "noise": Strategy((0.8, 0.5)), "expected_batch_size": 4}
    for changes in ({"clipping": dpsgd.Quantile()}, turns):
        with pytest.raises(NotApplicable, match="fresh noise"):
            dpsgd.CorrectedAdam(held, plan(**changes))
    with pytest.raises(NotApplicable, match="closure"):
        dpsgd.CorrectedAdam(held, plan()).step(lambda: 0.0)
