"""S31: ``discreet attack gradients`` on the digits of scikit-learn."""

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cli.attacked_models import digits_network
from cli.conftest import Run
from discreet.attacks import client_updates

DIGITS = load_digits()
X, Y = DIGITS.data / 16.0, DIGITS.target.astype(np.int64)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    records, labels = X[:6, None].reshape(6, 1, 8, 8), Y[:6, None]
    np.savez(tmp_path / "own.npz", records=records, labels=labels)
    noisy = client_updates(digits_network(), records, labels, clip_norm=1.0, stddev=2.0, seed=1)
    np.savez(tmp_path / "noisy.npz", updates=noisy, records=records, labels=labels)
    np.savez(tmp_path / "public.npz", records=X[1000:].reshape(-1, 8, 8), labels=Y[1000:])
    np.savez(tmp_path / "empty.npz", records=records)
    (tmp_path / "text.npz").write_text("no arrays")
    return tmp_path


def ask(run: Run, files: Path, updates: str, *more: str) -> object:
    return run(
        *("attack", "gradients", "--model", "attacked_models:digits_network"),
        *("--updates", str(files / updates), "--public", str(files / "public.npz"), *more),
    )


def test_pictures_are_found_and_shown_beside_the_originals(run: Run, files: Path) -> None:
    page = files / "page.html"
    done = ask(run, files, "own.npz", "--json", "--output", str(page))
    body = json.loads(done.stdout)
    assert body["identified"]["share"] == 1.0
    assert body["leaks"] is True
    assert body["internal"] is True
    text = page.read_text(encoding="utf-8")
    assert "INTERNAL" in text
    assert text.count("original") >= 6
    assert "proves nothing" in text


def test_updates_with_noise_give_nothing(run: Run, files: Path) -> None:
    done = ask(run, files, "noisy.npz", "--public-records")
    assert done.exit_code == 0
    assert "identified" not in done.stderr
    assert "0.000 [0.000" in done.stdout
    assert "INTERNAL" not in done.stdout


@pytest.mark.parametrize("name", ["text.npz", "empty.npz", "missing.npz"])
def test_files_without_arrays_are_refused(run: Run, files: Path, name: str) -> None:
    done = ask(run, files, name)
    assert done.exit_code != 0
    assert "updates" in done.stderr
