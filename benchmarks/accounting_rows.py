"""The settings on which the accountants are compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """``steps`` Poisson-sampled Gaussian releases, read at ``delta``."""

    noise: float
    rate: float
    steps: int
    delta: float

    @property
    def label(self) -> str:
        return f"{self.noise:g}, {self.rate:.4g}, {self.steps:g}, {self.delta:g}"


# The usual settings of the literature and of the peers' own examples.
USUAL = (
    Row(1.1, 256 / 60000, 14_062, 1e-5),
    Row(3.0, 4096 / 50000, 2_500, 1e-5),
    Row(0.5, 0.01, 1_000, 1e-5),
    Row(0.3, 0.1, 100, 1e-5),
    Row(50.0, 1e-3, 10_000, 1e-6),
    Row(1.0, 1e-4, 1_000_000, 1e-8),
    Row(0.5, 5e-4, 1_000_000, 1e-7),
    Row(0.7, 0.001, 100_000, 1e-6),
    Row(4.0, 0.01, 10_000, 1e-5),
    Row(10.0, 0.2, 1_000, 1e-6),
    Row(1.0, 1.0, 100, 1e-5),
)

# Corners of: steps 1 .. 1e7, rate 1e-6 .. 1, noise 0.2 .. 1e3, delta 1e-15 .. 0.5, with an
# epsilon of at most about a thousand.
CORNERS = (
    Row(0.2, 1e-6, 1, 1e-15),
    Row(0.2, 1e-6, 1, 1e-7),
    Row(0.2, 1e-6, 10_000_000, 1e-15),
    Row(0.2, 1e-6, 10_000_000, 0.5),
    Row(0.2, 1.0, 1, 1e-15),
    Row(0.2, 0.5, 1, 1e-15),
    Row(0.2, 0.01, 10, 0.5),
    Row(0.2, 0.001, 100, 1e-10),
    Row(1.0, 1e-6, 10_000_000, 1e-15),
    Row(1.0, 1e-3, 10_000_000, 1e-6),
    Row(10.0, 0.999, 1_000, 1e-12),
    Row(30.0, 0.01, 1_000_000, 1e-15),
    Row(1e3, 1e-6, 1, 1e-15),
    Row(1e3, 1e-6, 10_000_000, 1e-15),
    Row(1e3, 1e-3, 10_000_000, 1e-15),
    Row(1e3, 0.5, 10_000_000, 1e-10),
    Row(1e3, 1.0, 1, 0.5),
    Row(1e3, 1.0, 10_000_000, 1e-15),
    Row(1e3, 1.0, 10_000_000, 0.5),
)

# (noise, batches, epochs, delta) of shuffled epochs: random allocation.
ALLOCATIONS = (
    (1.0, 50, 1, 1e-6),
    (1.0, 50, 10, 1e-6),
    (2.0, 100, 1, 1e-6),
    (0.5, 1000, 1, 1e-6),
    (1.0, 1000, 10, 1e-5),
    (4.0, 10, 20, 1e-6),
    (0.8, 200, 5, 1e-8),
    (2.0, 20, 100, 1e-5),
    (1.1, 235, 60, 1e-5),
    (1.0, 10_000, 10, 1e-5),
)


@dataclass(frozen=True)
class Risk:
    """What an attacker on a training may reach: an advantage, or true positives at ``fpr``."""

    most: float
    fpr: float | None
    rate: float
    steps: int

    @property
    def label(self) -> str:
        what = "advantage" if self.fpr is None else f"true positives at {self.fpr:g}"
        return f"{what} {self.most:g}, rate {self.rate:g}, {self.steps} steps"


RISKS = (
    Risk(0.1, None, 0.01, 1_000),
    Risk(0.3, None, 0.002, 10_000),
    Risk(0.02, 0.01, 0.01, 1_000),
    Risk(0.2, 0.05, 0.002, 10_000),
    Risk(0.01, 0.001, 0.01, 1_000),
)

# (noise, rate) of the curves of seconds against steps.
STEP_CURVES = ((1.0, 1e-4), (4.0, 1e-3))

# (epsilon, delta, rate, steps) of the calibrations.
CALIBRATIONS = (
    (1.0, 1e-5, 256 / 60000, 14_062),
    (8.0, 1e-5, 4096 / 50000, 2_500),
    (3.0, 1e-6, 0.01, 10_000),
    (8.0, 1e-6, 0.001, 100_000),
    (0.5, 1e-8, 1e-4, 1_000_000),
    (2.0, 1e-5, 1.0, 100),
)


def mixed_atoms(count: int, least_noise: float) -> list[tuple[float, float]]:
    """(noise, rate) of ``count`` distinct steps: three units of noise, rates 1e-4 .. 1e-2."""
    return [
        (least_noise + 3.0 * i / count, 1e-4 + 1e-2 * ((37 * i) % count) / count)
        for i in range(count)
    ]
