"""Adam without the share of the noise in its second moments.

Adam divides by the root of an average of squared gradients. Of noisy gradients that average is too
large by the variance of the noise, which a plan makes public. Where the noise is larger than the
gradient, all coordinates get the same small steps, and Adam becomes SGD with momentum. Subtracting
the variance brings its scale back (Tang, Shpilevskiy and Lecuyer 2023). It is arithmetic on what
was released, and costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from discreet import _validate
from discreet.errors import InvalidValue, NotApplicable
from discreet.learn.dpsgd._clipping import Quantile
from discreet.learn.dpsgd._noise import StepFactors
from discreet.learn.dpsgd._plan import TURNS, Plan


@final
class CorrectedAdam(Optimizer):
    """Adam whose second moments do not count the noise of ``plan``.

    The second moment of a coordinate, after the usual correction for its start, is reduced by the
    variance of the noise in the normalised gradient, but not below ``floor`` squared. ``floor``,
    the smallest divisor of a step, is by default a tenth of the standard deviation of the noise;
    tune it with the learning rate. Use it as any optimizer, with ``make_private`` or ``Trainer``.

    >>> plan = Plan(
    ...     examples=100,
    ...     expected_batch_size=10,
    ...     steps=5,
    ...     clip_norm=1.0,
    ...     noise_multiplier=1.0,
    ...     delta=1e-3,
    ... )
    >>> optimizer = CorrectedAdam(torch.nn.Linear(2, 1).parameters(), plan, lr=0.01)
    >>> optimizer.defaults["floor"]
    0.01
    """

    def __init__(
        self,
        params: Iterable[Any],
        plan: Plan,
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise InvalidValue("plan", plan, "a discreet.learn.dpsgd.Plan")
        if isinstance(plan.clipping, Quantile) or plan.sampler in TURNS:
            raise NotApplicable(
                "the variance of the noise is not the same in every step of this plan, or noise is "
                "taken back later: CorrectedAdam needs fresh noise and a fixed clip norm"
            )
        _validate.real("lr", lr, above=0)
        for beta in betas:
            _validate.real("betas", beta, at_least=0, below=1)
        self._factors = StepFactors(plan, ranks=1)
        if floor is None:
            floor = self._factors.stddev(0) / 10
        _validate.real("floor", floor, above=0)
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move the parameters by the noisy gradients; there is no closure."""
        if closure is not None:
            raise NotApplicable("a closure would read the data again")
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = torch.zeros(())
            state["noise"] = torch.zeros(())
            state["mean"], state["square"] = (torch.zeros_like(parameter) for _ in range(2))
        variance = self._factors.stddev(int(state["step"])) ** 2
        state["step"] += 1
        taken = int(state["step"])
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        state["noise"].mul_(second).add_((1 - second) * variance)
        rest = (state["square"] - state["noise"]) / (1 - second**taken)
        divisor = rest.clamp_(min=group["floor"] ** 2).sqrt_()
        parameter.addcdiv_(state["mean"], divisor, value=-group["lr"] / (1 - first**taken))
