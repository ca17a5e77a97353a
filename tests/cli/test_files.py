"""Pictures are complete or absent."""

from pathlib import Path

import pytest

from discreet.cli._options import output_file
from discreet.errors import InvalidValue


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_picture_appears_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "a.png"
    with output_file(str(target), ".png", ".svg") as draft:
        assert draft is not None
        assert draft.suffix == ".png"
        assert not target.exists()
        draft.write_bytes(b"new")
    assert target.read_bytes() == b"new"
    assert names(tmp_path) == ["a.png"]


def test_a_failure_leaves_nothing_behind_and_the_old_file_untouched(tmp_path: Path) -> None:
    target = tmp_path / "a.svg"
    target.write_bytes(b"old")

    def half_done() -> None:
        with output_file(str(target), ".png", ".svg") as draft:
            assert draft is not None
            draft.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_done()
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["a.svg"]


def test_an_error_of_the_disk_names_the_option(tmp_path: Path) -> None:
    def no_space() -> None:
        with output_file(str(tmp_path / "a.png"), ".png", ".svg"):
            raise OSError(28, "No space left on device")

    with pytest.raises(InvalidValue, match="No space left on device"):
        no_space()
    assert names(tmp_path) == []


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with output_file(str(tmp_path / "a.png"), ".png", ".svg"):
        pass
    assert (tmp_path / "a.png").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_no_output_is_no_file() -> None:
    with output_file(None, ".png", ".svg") as draft:
        assert draft is None


@pytest.mark.parametrize("name", ["missing/a.png", "file/a.png", "folder.png", "a.gif", "a", ""])
def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    before = names(tmp_path)
    output = str(tmp_path / name) if name else ""

    def enter() -> None:
        with output_file(output, ".png", ".svg"):
            pytest.fail("the block was entered")

    with pytest.raises(InvalidValue) as refused:
        enter()
    assert refused.value.argument == "output"
    assert names(tmp_path) == before


def test_a_name_too_long_is_refused(tmp_path: Path) -> None:
    def enter() -> None:
        with output_file(str(tmp_path / ("a" * 300 + ".png")), ".png", ".svg"):
            pytest.fail("the block was entered")

    with pytest.raises(InvalidValue, match="File name too long"):
        enter()
