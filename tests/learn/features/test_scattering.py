"""The scattering transform against its definition, pixel by pixel, and its properties."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from discreet.errors import InvalidValue
from discreet.learn.features import Scattering, contrasts, group_normalised
from discreet.learn.features._scattering import filter_bank, gaussian_line

Image = NDArray[np.float64]


# --- the definition, written out ----------------------------------------------------------


def wrapped(function, height: int, width: int) -> NDArray[np.complex128]:
    """A function of the plane as a periodic image with its origin at pixel (0, 0)."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return sum(
        function(x + turns_x * width, y + turns_y * height)
        for turns_y, turns_x in itertools.product(range(-6, 7), repeat=2)
    )


def slow_wavelet(height: int, width: int, j: int, angle: float, directions: int) -> NDArray:
    spread, wave, slant = 0.8 * 2**j, 0.75 * math.pi / 2**j, min(1, 4 / directions)

    def envelope(x: NDArray, y: NDArray) -> NDArray:
        along = x * math.cos(angle) + y * math.sin(angle)
        across = y * math.cos(angle) - x * math.sin(angle)
        return np.exp(-(along**2 + slant**2 * across**2) / (2 * spread**2))

    def gabor(x: NDArray, y: NDArray) -> NDArray:
        return envelope(x, y) * np.exp(1j * wave * (x * math.cos(angle) + y * math.sin(angle)))

    plain = wrapped(gabor, height, width)
    window = wrapped(envelope, height, width)
    return (plain - plain.sum() / window.sum() * window) * slant / (2 * math.pi * spread**2)


def circular(image: NDArray, kernel: NDArray) -> NDArray[np.complex128]:
    """Convolution on the torus by its definition."""
    out = np.zeros(image.shape, dtype=np.complex128)
    for shift_y, shift_x in itertools.product(*map(range, kernel.shape)):
        out += kernel[shift_y, shift_x] * np.roll(image, (shift_y, shift_x), axis=(0, 1))
    return out


def slow_average(image: NDArray, spread: float) -> Image:
    kernel = wrapped(lambda x, y: np.exp(-(x**2 + y**2) / (2 * spread**2)), *image.shape)
    return circular(image, kernel / kernel.sum()).real


def sampled_kernel(kernel: NDArray, stride: int) -> NDArray:
    """Every stride-th value, each standing for stride^2 pixels."""
    return kernel[::stride, ::stride] * stride**2


def slow_scattering(image: Image, scales: int, directions: int, factor: float) -> Image:
    margin = 2**scales
    padded = np.pad(image, margin, mode="reflect")
    spread = 0.8 * 2 ** (scales - 1)
    angles = [math.pi * k / directions for k in range(directions)]
    wavelets = {
        (j, k): factor * slow_wavelet(*padded.shape, j, angle, directions)
        for j in range(scales)
        for k, angle in enumerate(angles)
    }

    def seen(maps: NDArray, sampled: int) -> Image:
        stride = 2 ** (scales - sampled)
        return slow_average(maps, spread / 2**sampled)[::stride, ::stride][1:-1, 1:-1]

    zeroth, first, second = [seen(padded, 0)], [], []
    moduli = {key: np.abs(circular(padded, kernel)) for key, kernel in wavelets.items()}
    for j in range(scales):
        for k in range(directions):
            coarse = moduli[j, k][:: 2**j, :: 2**j]
            first.append(seen(coarse, j))
    for j, coarser in itertools.combinations(range(scales), 2):
        for k, m in itertools.product(range(directions), repeat=2):
            coarse = moduli[j, k][:: 2**j, :: 2**j]
            twice = np.abs(circular(coarse, sampled_kernel(wavelets[coarser, m], 2**j)))
            stride = 2 ** (coarser - j)
            second.append(seen(twice[::stride, ::stride], coarser))
    return np.array(zeroth + first + second)


def common_factor(size: int, scales: int, directions: int) -> float:
    """The factor of the bank, read off one value of one wavelet."""
    bank = filter_bank(size, size, scales=scales, orientations=directions)
    plain = np.fft.fft2(slow_wavelet(size, size, 0, 0.0, directions)).real
    peak = np.unravel_index(np.argmax(plain), plain.shape)
    return float(bank.wavelets[0, 0][peak] / plain[peak])


@pytest.mark.parametrize(("size", "scales", "directions"), [(8, 1, 4), (12, 2, 6), (16, 3, 2)])
def test_equals_its_definition(size: int, scales: int, directions: int) -> None:
    image = np.random.default_rng(size).uniform(size=(size, size))
    padded = size + 2 * 2**scales
    expected = slow_scattering(image, scales, directions, common_factor(padded, scales, directions))
    module = Scattering((size, size), scales=scales, orientations=directions)
    single = module(torch.tensor(image, dtype=torch.float32)).numpy()
    assert single.shape == (module.channels, size // 2**scales, size // 2**scales)
    assert np.abs(single - expected).max() < 2e-6


def test_rectangles_and_the_usual_size() -> None:
    image = np.random.default_rng(1).uniform(size=(8, 12))
    bank = filter_bank(12, 16, scales=1, orientations=4)
    plain = np.fft.fft2(slow_wavelet(12, 16, 0, 0.0, 4)).real
    peak = np.unravel_index(np.argmax(plain), plain.shape)
    factor = float(bank.wavelets[0, 0][peak] / plain[peak])
    module = Scattering((8, 12), scales=1, orientations=4)
    got = module(torch.tensor(image, dtype=torch.float32)).numpy()
    assert np.abs(got - slow_scattering(image, 1, 4, factor)).max() < 2e-6
    usual = Scattering((28, 28))
    assert usual.channels == 1 + 2 * 8 + 8**2 == 81
    assert usual(torch.zeros(2, 3, 28, 28)).shape == (2, 3, 81, 7, 7)


# --- the filters -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(36, 36), (40, 40), (24, 56)])
@pytest.mark.parametrize(("scales", "directions"), [(1, 1), (2, 8), (3, 6)])
def test_filters_never_add_energy(size: tuple[int, int], scales: int, directions: int) -> None:
    bank = filter_bank(*size, scales=scales, orientations=directions)
    assert bank.low_pass[0, 0] == pytest.approx(1, abs=1e-12)
    assert np.abs(bank.wavelets[:, :, 0, 0]).max() < 1e-12
    assert bank.energy.max() <= 1 + 1e-9
    away_from_zero = bank.energy.copy()
    away_from_zero[0, 0] = 0
    assert away_from_zero.max() == pytest.approx(1, abs=1e-9)
    image = np.random.default_rng(2).normal(size=size)
    spectra = np.fft.fft2(image) * np.concatenate(
        [bank.low_pass[None], bank.wavelets.reshape(-1, *size)]
    )
    energies = np.sum(np.abs(np.fft.ifft2(spectra)) ** 2)
    assert energies <= np.sum(image**2) * (1 + 1e-9)


def test_most_frequencies_are_heard() -> None:
    """Nothing but the corners of the spectrum is lost: a bank that drops a band would be useless.

    Half of the energy is a mild demand; a bank without its finest scale fails it.
    """
    bank = filter_bank(36, 36, scales=2, orientations=8)
    rows, columns = np.meshgrid(*[np.fft.fftfreq(36) * 2 * math.pi] * 2, indexing="ij")
    inside = np.hypot(rows, columns) < 0.85 * math.pi
    assert bank.energy[inside].min() > 0.1
    assert np.median(bank.energy[inside]) > 0.5
    coarse_only = bank.low_pass**2 + np.sum(bank.wavelets[1] ** 2, axis=0)
    assert np.median(coarse_only[inside]) < 0.1


def test_a_window_on_a_small_circle_still_sums_to_one() -> None:
    assert gaussian_line(3, 50.0) == pytest.approx([1 / 3] * 3)
    assert gaussian_line(64, 0.8).sum() == pytest.approx(1)


# --- properties of the features ------------------------------------------------------------


@pytest.fixture(scope="module")
def usual() -> Scattering:
    return Scattering((28, 28))


def blob(seed: int, margin: int = 6) -> torch.Tensor:
    values = np.random.default_rng(seed).uniform(size=(28 - 2 * margin,) * 2)
    return torch.tensor(np.pad(values, margin), dtype=torch.float32)


def test_constant_images_have_order_zero_only(usual: Scattering) -> None:
    features = usual(torch.full((28, 28), 0.7))
    assert features[0] == pytest.approx(torch.full((7, 7), 0.7), abs=1e-6)
    assert features[1:].abs().max() < 1e-6


def test_a_shift_by_one_cell_shifts_the_features(usual: Scattering) -> None:
    image = blob(3, margin=9)
    moved = torch.roll(image, 4, dims=0)
    assert usual(moved)[:, 1:] == pytest.approx(usual(image)[:, :-1], abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_a_shift_by_one_pixel_hardly_matters(usual: Scattering, seed: int) -> None:
    image = blob(seed)
    moved = torch.roll(image, 1, dims=1)
    pixels = (moved - image).norm() / image.norm()
    features = usual(image)
    assert (usual(moved) - features).norm() / features.norm() < pixels / 3


def test_transposing_the_image_exchanges_directions(usual: Scattering) -> None:
    image = blob(5)
    straight, crossed = usual(image), usual(image.T)
    mirror = [(4 - direction) % 8 for direction in range(8)]
    first = straight[1:17].reshape(2, 8, 7, 7)[:, mirror].transpose(-1, -2)
    assert crossed[1:17].reshape(2, 8, 7, 7) == pytest.approx(first, abs=1e-6)
    second = straight[17:].reshape(8, 8, 7, 7)[mirror][:, mirror].transpose(-1, -2)
    assert crossed[17:].reshape(8, 8, 7, 7) == pytest.approx(second, abs=1e-6)


def test_rows_do_not_see_one_another(usual: Scattering) -> None:
    images = torch.stack([blob(seed) for seed in range(5)])
    whole = usual(images)
    spoiled = images.clone()
    spoiled[2] = torch.nan
    after = usual(spoiled)
    kept = [0, 1, 3, 4]
    assert torch.equal(after[kept], whole[kept])
    assert after[2].isnan().all()
    assert whole[3] == pytest.approx(usual(images[3]), abs=1e-6)


def test_chunks_do_not_matter_and_bytes_are_fractions(usual: Scattering) -> None:
    images = np.random.default_rng(7).integers(0, 256, size=(7, 28, 28), dtype=np.uint8)
    direct = usual(torch.tensor(images, dtype=torch.float32) / 255)
    for chunk in (1, 3, 16):
        assert usual.transform(images, chunk=chunk) == pytest.approx(direct, abs=1e-6)
    assert usual.transform(images[:0]).shape == (0, 81, 7, 7)
    assert usual.transform(images.reshape(7, 1, 28, 28)).shape == (7, 1, 81, 7, 7)


def test_there_is_nothing_to_learn_or_to_save(usual: Scattering) -> None:
    assert list(usual.parameters()) == []
    assert usual.state_dict() == {}


def test_gradients_flow_to_the_image() -> None:
    module = Scattering((8, 8), scales=1, orientations=2)
    image = torch.rand(8, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    module(image).sum().backward()
    assert image.grad is not None
    assert image.grad.isfinite().all()
    assert image.grad.abs().max() > 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"size": (28, 27)},
        {"size": (4, 28)},
        {"size": 28},
        {"size": (28, 28, 3)},
        {"size": (28.0, 28)},
        {"size": (28, 28), "scales": 0},
        {"size": (28, 28), "orientations": 0},
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=r"size|scales|orientations"):
        Scattering(**arguments)


def test_bad_images_are_refused(usual: Scattering) -> None:
    with pytest.raises(InvalidValue, match="28 x 28"):
        usual(torch.zeros(3, 32, 32))
    with pytest.raises(InvalidValue, match="uint8"):
        usual(torch.zeros(28, 28, dtype=torch.uint8))
    with pytest.raises(InvalidValue, match="bytes of shape"):
        usual.transform(np.zeros((2, 28, 28)))
    with pytest.raises(InvalidValue, match="chunk"):
        usual.transform(np.zeros((2, 28, 28), dtype=np.uint8), chunk=0)


# --- normalisation ------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 6]), st.floats(-6, 6))
def test_groups_get_mean_zero_and_variance_one(seed: int, groups: int, magnitude: float) -> None:
    values = np.random.default_rng(seed).normal(loc=1, size=(4, 6, 5)) * 10**magnitude
    features = torch.tensor(values)
    result = group_normalised(features, groups=groups, epsilon=1e-30)
    for example in range(4):
        for group in result[example].reshape(groups, -1):
            assert abs(float(group.mean())) < 1e-9
            assert float(group.var(unbiased=False)) == pytest.approx(1, rel=1e-6)
    assert float(result.flatten(1).norm(dim=1).max()) <= math.sqrt(30) * (1 + 1e-9)
    alone = group_normalised(features[2:3], groups=groups, epsilon=1e-30)
    assert torch.allclose(alone, result[2:3], rtol=1e-12, atol=1e-12)


def test_constant_groups_become_zero() -> None:
    assert group_normalised(torch.full((2, 4), 3.0), groups=2).abs().max() == 0
    assert group_normalised(torch.rand(2, 4), groups=4).abs().max() == 0


@pytest.mark.parametrize("shape", [(3, 4), (4,)])
def test_groups_must_divide_the_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidValue, match="groups"):
        group_normalised(torch.zeros(shape), groups=3)


def test_blocks_cover_all_but_order_zero() -> None:
    module = Scattering((32, 32), scales=3, orientations=4)
    assert module.blocks == ((1, 5), (5, 9), (9, 13), (13, 29), (29, 45), (45, 61))
    assert module.blocks[-1][1] == module.channels


@given(st.integers(0, 2**32 - 1))
def test_contrasts_equal_their_definition(seed: int) -> None:
    features = torch.tensor(np.random.default_rng(seed).normal(size=(3, 6, 2, 2)))
    kept = features.clone()
    got = contrasts(features, groups=3, blocks=[(4, 6), (1, 4)])
    assert torch.equal(features, kept)
    for row in range(3):
        normal = group_normalised(features[row : row + 1], groups=3).numpy().copy()
        for place in np.ndindex(2, 2):
            for start, stop in ((1, 4), (4, 6)):
                values = normal[(0, slice(start, stop), *place)]
                values -= values.sum() / (stop - start)
        expected = group_normalised(torch.tensor(normal), groups=3)
        assert torch.allclose(got[row : row + 1], expected, rtol=1e-10, atol=1e-12)
    assert float(got.flatten(1).norm(dim=1).max()) <= math.sqrt(24) * (1 + 1e-9)


def test_what_is_common_to_a_block_disappears() -> None:
    generator = torch.Generator().manual_seed(2)
    common = 5 * torch.rand(1, 1, 4, 4, generator=generator)
    own = torch.rand(1, 8, 4, 4, generator=generator)
    alone = contrasts(own, groups=1, blocks=[(0, 8)])
    assert torch.allclose(contrasts(own + common, groups=1, blocks=[(0, 8)]), alone, atol=1e-3)
    assert not torch.allclose(contrasts(own + common, groups=1, blocks=[]), alone, atol=0.1)


@pytest.mark.parametrize("blocks", [[(0, 3), (2, 4)], [(2, 2)], [(3, 5)], [(-1, 2)]])
def test_blocks_must_be_ranges_of_channels(blocks: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidValue, match="blocks"):
        contrasts(torch.rand(2, 4, 3), groups=1, blocks=blocks)
