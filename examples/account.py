"""What a training run and a noisy count cost together, before any data is read.

Run it with `python examples/account.py`; it needs no data and no extra packages.
"""

from discreet.privacy import Gaussian, Laplace

# 60 epochs of DP-SGD on 60,000 examples, batches of 256 on average, and then one noisy count.
run = 14_062 * Gaussian(noise_multiplier=1.1).poisson(rate=256 / 60_000)
total = run + Laplace(scale=20.0, sensitivity=1.0)

bounds = run.epsilon_bounds(delta=1e-5)
print(f"training alone: epsilon between {bounds.lower:.4f} and {bounds.upper:.4f} at delta 1e-5")
print(f"by Renyi divergences: at most {run.epsilon(delta=1e-5, accountant='rdp'):.2f}")
print(f"with the count: at most {total.epsilon(delta=1e-5):.2f}")
