"""The published plan, which server and clients share."""

from discreet.federated import FederatedPlan

PLAN = FederatedPlan(
    clients=4,
    expected_cohort=4,
    rounds=2,
    clip_norm=1.0,
    delta=1e-3,
    sampler="full",
    noise_multiplier=1e-9,
)
