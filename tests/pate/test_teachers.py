"""Teachers (S23): one record, one vote; whatever goes wrong stays inside; files; networks."""

# ruff: noqa: N803, NPY002 (scikit-learn calls the features X; teachers may use old generators)

import time
import tracemalloc
import warnings
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from discreet.errors import InvalidValue
from discreet.pate import NetworkTeachers, partition_records, teacher_votes
from discreet.pate import _teachers as teachers_module
from discreet.pate._teachers import name_teachers, rehearse

RNG = np.random.default_rng(3)
CENTRES = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
LABELS = RNG.integers(0, 3, size=400)
ROWS = CENTRES[LABELS] + RNG.normal(size=(400, 3))
TRUTH = np.arange(30) % 3
QUERIES = CENTRES[TRUTH] + RNG.normal(size=(30, 3)) * 0.5


def nearest(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
    """The label of the nearest record: changes whenever a near record does."""
    away = ((queries[:, None, :] - X[None, :, :]) ** 2).sum(axis=2)
    return y[away.argmin(axis=1)]


def votes_of(teacher: Any, *, rows: Any = ROWS, labels: Any = LABELS, **more: Any) -> Any:
    count = more.pop("teachers", 10)
    parts = partition_records(rows, labels, teachers=count, insecure_seed=1)
    return teacher_votes(parts, rows, labels, QUERIES, teacher=teacher, classes=3, **more)


@pytest.mark.parametrize(
    "teacher",
    [
        LogisticRegression(),
        RidgeClassifier(),
        nearest,
        [GaussianNB(), DecisionTreeClassifier(), nearest],
        NetworkTeachers(lambda: nn.Linear(3, 3), cache_key="linear", steps=25, group=10, rate=0.05),
    ],
    ids=["logistic", "ridge", "function", "mixed", "networks"],
)
def test_every_kind_of_teacher_votes_and_one_record_moves_one_vote(teacher: Any) -> None:
    whole = votes_of(teacher)
    assert whole.sum(axis=1).tolist() == [10] * 30
    assert np.mean(whole.argmax(axis=1) == TRUTH) > 0.9
    for at in (0, 203):
        kept = np.delete(np.arange(400), at)
        less = votes_of(teacher, rows=ROWS[kept], labels=LABELS[kept])
        assert np.abs(whole - less).sum(axis=1).max() <= 2
    # A record that is far from all others, with a wild label.
    rows, labels = np.vstack([ROWS, [[1e9, -1e9, 1e9]]]), np.append(LABELS, 2)
    assert np.abs(whole - votes_of(teacher, rows=rows, labels=labels)).sum(axis=1).max() <= 2


def test_overlapping_teachers_are_refused_and_would_move_two_votes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = partition_records(ROWS, LABELS, teachers=10, insecure_seed=1)
    members = list(parts._members)
    shared = int(members[3][0])
    members[4] = np.append(members[4], shared)
    object.__setattr__(parts, "_members", tuple(members))
    with pytest.raises(InvalidValue, match="at most one part"):
        teacher_votes(parts, ROWS, LABELS, QUERIES, teacher=nearest, classes=3)
    # Without the check the shared record, near a query, moves two votes on it.
    monkeypatch.setattr(teachers_module, "check_disjoint", lambda *_, **__: None)
    rows, labels = ROWS.copy(), LABELS.copy()
    found = []
    for label in (0, 1):
        rows[shared], labels[shared] = QUERIES[0], label
        found.append(teacher_votes(parts, rows, labels, QUERIES, teacher=nearest, classes=3))
    assert np.abs(found[0] - found[1]).sum(axis=1).max() == 4


def test_columns_and_preparation_are_for_each_teacher_alone() -> None:
    seen: list[tuple[int, ...]] = []

    def looking(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
        seen.append((*X.shape, *queries.shape))
        return np.zeros(len(queries), dtype=np.int64)

    sizes: list[int] = []

    def doubled(rows: Any) -> Any:
        sizes.append(len(rows))
        return np.hstack([rows, rows])

    votes_of(looking, columns=[[0, 4], [1, 2, 5]], prepare=doubled)
    trained = seen[2:]
    assert [shape[1] for shape in trained] == [2] * 5 + [3] * 5
    assert sum(shape[0] for shape in trained) == 400
    assert 400 not in sizes


@pytest.mark.parametrize("together", [False, True])
def test_what_goes_wrong_inside_is_not_told(together: bool) -> None:
    class Touchy:
        """Raises, warns or babbles, by the part it is given."""

        cache_key = "touchy"

        def answer(self, X: Any, y: Any, queries: Any) -> Any:
            if X[:, 0].max() > 1e6:
                raise SystemExit("a record of 1e9")
            if X[:, 0].max() > 1e5:
                warnings.warn("a record of 1e5", stacklevel=1)
                return np.full(len(queries), 77)
            return np.ones(len(queries), dtype=np.int64)

        def vote_together(self, parts: Any, queries: Any, *, classes: int, seeds: Any) -> Any:
            return [self.answer(*part, asked) for part, asked in zip(parts, queries, strict=True)]

    def alone(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
        return Touchy().answer(X, y, queries)

    rows = ROWS.copy()
    rows[5, 0], rows[6, 0] = 1e9, 2e5
    labels = LABELS.copy()
    found = votes_of(Touchy() if together else alone, rows=rows, labels=labels)
    broken = 2 if _teacher_of(5, rows) != _teacher_of(6, rows) else 1
    assert found.tolist() == [[broken, 10 - broken, 0]] * 30


def _teacher_of(record: int, rows: Any) -> int:
    parts = partition_records(rows, LABELS, teachers=10, insecure_seed=1)
    return next(place for place in range(10) if record in parts.members(place))


def test_empty_parts_and_missing_classes_are_no_error() -> None:
    few, labels = ROWS[:5], LABELS[:5]
    found = votes_of(LogisticRegression(), rows=few, labels=labels, teachers=40)
    assert found.sum(axis=1).tolist() == [40] * 30
    assert (found[:, 0] >= 35).all()
    nobody = votes_of(LogisticRegression(), rows=ROWS[:0], labels=LABELS[:0], teachers=4)
    assert nobody.tolist() == [[4, 0, 0]] * 30
    # Undeclared labels count for nothing; a part with one class votes for it.
    codes = np.where(LABELS == 1, 1, -1)
    assert votes_of(LogisticRegression(), labels=codes).tolist() == [[0, 10, 0]] * 30


def test_a_teacher_that_cannot_work_is_found_on_public_rows() -> None:
    def broken(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
        raise KeyError("no such thing")

    with pytest.raises(InvalidValue, match=r"broken.*KeyError"):
        votes_of(broken)

    def floats(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
        return np.zeros(len(queries))

    with pytest.raises(InvalidValue, match="class codes from 0 to 2"):
        votes_of(floats)
    for wrong in ([], 3, LogisticRegression):
        with pytest.raises(InvalidValue, match="teacher ="):
            rehearse(wrong, QUERIES, classes=3)
    for columns in ([], [[7]], [[]], [[0.5]]):
        with pytest.raises(InvalidValue, match="columns ="):
            votes_of(GaussianNB(), columns=columns)
    assert name_teachers([GaussianNB(), nearest]) == ["GaussianNB()", "nearest"]


def test_an_interrupted_run_goes_on_and_files_follow_content(tmp_path: Path) -> None:
    calls: list[int] = []

    class Counting:
        cache_key = "counting 1"
        stop = 6

        def __call__(self, X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
            calls.append(len(X))
            if len(calls) == self.stop:
                raise KeyboardInterrupt
            return nearest(X, y, queries, classes=classes, seed=seed)

    place = tmp_path / "votes"
    teacher = Counting()
    with pytest.raises(KeyboardInterrupt):
        votes_of(teacher, cache=place)
    kept = len(list(place.glob("votes-*.npy")))
    assert 1 <= kept <= 4
    calls.clear()
    teacher.stop = -1
    found = votes_of(teacher, cache=place)
    assert len(calls) == 1 + 10 - kept  # one is the rehearsal
    assert found.tolist() == votes_of(nearest).tolist()
    assert place.stat().st_mode & 0o077 == 0
    calls.clear()
    assert votes_of(teacher, cache=place).tolist() == found.tolist()
    assert len(calls) == 1
    # A damaged file is made again, and other data have other files.
    next(place.glob("votes-*.npy")).write_bytes(b"half")
    assert votes_of(teacher, cache=place).tolist() == found.tolist()
    assert len(calls) == 3
    calls.clear()
    labels = LABELS.copy()
    labels[0] = (labels[0] + 1) % 3
    votes_of(teacher, labels=labels, cache=place)
    assert 2 <= len(calls) <= 3
    assert not list(place.glob("*.part"))
    with pytest.raises(InvalidValue, match="cache_key"):
        votes_of(nearest, cache=place)
    (tmp_path / "taken").write_text("")
    with pytest.raises(InvalidValue, match="cache ="):
        votes_of(teacher, cache=tmp_path / "taken")


def test_workers_give_the_same_votes() -> None:
    alone = votes_of(DecisionTreeClassifier())
    with joblib.parallel_config(backend="threading"):
        assert votes_of(DecisionTreeClassifier(), n_jobs=2).tolist() == alone.tolist()


def test_networks_in_a_group_are_independent_to_the_last_bit() -> None:
    def deep() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    teachers = NetworkTeachers(deep, cache_key="deep", steps=30, group=4)
    parts = [(ROWS[start : start + 50], LABELS[start : start + 50]) for start in range(0, 200, 50)]
    seeds = [1, 2, 3, 4]

    def answers(some: Any, some_seeds: Any) -> Any:
        queries = [QUERIES] * len(some)
        return teachers.vote_together(some, queries, classes=3, seeds=some_seeds)

    whole = answers(parts, seeds)
    other = [parts[0], (ROWS[300:303] * 1e20, LABELS[300:303]), parts[2], parts[3]]
    changed = answers(other, seeds)
    for place in (0, 2, 3):
        assert changed[place].tolist() == whole[place].tolist()
    assert answers(parts[2:3], seeds[2:3])[0].tolist() == whole[2].tolist()


@pytest.mark.parametrize(
    "wrong",
    [{"factory": 3}, {"cache_key": ""}, {"steps": 0}, {"batch": 0}, {"rate": 0.0}, {"group": 0}],
)
def test_bad_networks_are_named(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"factory": lambda: nn.Linear(3, 3), "cache_key": "linear"}
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        NetworkTeachers(**{**good, **wrong})


def shuffled(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
    """Draws from the generators of the process, as often as it has records."""
    kept = torch.randperm(len(X))[: len(X) // 2].numpy()
    mixed = np.random.permutation(kept)
    return nearest(X[mixed], y[mixed], queries, classes=classes, seed=seed)


def test_teachers_that_draw_from_the_generators_of_the_process_still_move_one_vote() -> None:
    def votes(rows: Any, labels: Any) -> Any:
        np.random.seed(0)
        torch.manual_seed(0)
        return votes_of(shuffled, rows=rows, labels=labels, n_jobs=1)

    state = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    whole = votes(ROWS, LABELS)
    kept = np.delete(np.arange(400), 5)
    assert np.abs(whole - votes(ROWS[kept], LABELS[kept])).sum(axis=1).max() <= 2
    np.random.seed(0)
    torch.manual_seed(0)
    expected = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    votes(ROWS, LABELS)
    assert np.array_equal(np.random.get_state()[1], expected[0])
    assert torch.equal(torch.random.get_rng_state(), expected[1])
    torch.random.set_rng_state(state[1])


@pytest.mark.parametrize("damage", [b"PK\x03\x04junk", b"", b"\x93NUMPY\x01\x00", b"x" * 9000])
def test_damaged_votes_are_asked_again(tmp_path: Path, damage: bytes) -> None:
    whole = votes_of(GaussianNB(), cache=tmp_path)
    path = min(tmp_path.glob("votes-*.npy"))
    path.write_bytes(damage)
    assert np.array_equal(votes_of(GaussianNB(), cache=tmp_path), whole)
    np.save(path, np.full(30, 7))
    assert np.array_equal(votes_of(GaussianNB(), cache=tmp_path), whole)


def test_a_teacher_that_remembers_does_not_pass_it_on() -> None:
    """An object is copied for every teacher; otherwise one record would move many votes."""

    class Hoarding:
        cache_key = "hoarding"

        def __init__(self) -> None:
            self.rows = np.empty((0, 3))
            self.labels = np.empty(0, dtype=np.int64)

        def __call__(self, X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
            self.rows, self.labels = np.vstack([self.rows, X]), np.append(self.labels, y)
            return nearest(self.rows, self.labels, queries, classes=classes, seed=seed)

    teacher = Hoarding()
    assert votes_of(teacher).tolist() == votes_of(nearest).tolist()
    assert len(teacher.rows) == 0


class Placed:
    """Notes who is where in a group, and breaks on a wild record."""

    cache_key = "placed"
    groups: ClassVar[list[list[int]]] = []

    def vote_together(self, parts: Any, queries: Any, *, classes: int, seeds: Any) -> Any:
        self.groups.append(list(seeds))
        if any(X[:, 0].max() > 1e6 for X, _ in parts):
            raise RuntimeError("a wild record")
        draws = np.random.default_rng(seeds[0]).integers(0, 3)  # whoever is first
        return [
            (nearest(X, y, asked, classes=classes, seed=0) + at + draws) % 3
            for at, ((X, y), asked) in enumerate(zip(parts, queries, strict=True))
        ]


@pytest.mark.parametrize("change", ["no records", "one class", "wild"])
def test_nobody_in_a_group_changes_place_for_another(change: str) -> None:
    """Votes that depend on the place in the group still move for one teacher only."""
    parts = partition_records(ROWS, LABELS, teachers=10, insecure_seed=1)
    whole = teacher_votes(parts, ROWS, LABELS, QUERIES, teacher=Placed(), classes=3)
    rows, labels = ROWS.copy(), LABELS.copy()
    mine = parts.members(4)
    if change == "no records":
        labels[mine] = -1
    elif change == "one class":
        labels[mine] = 2
    else:
        rows[mine[0], 0] = 1e9
    Placed.groups.clear()
    other = teacher_votes(parts, rows, labels, QUERIES, teacher=Placed(), classes=3)
    assert np.abs(whole - other).sum(axis=1).max() <= 2
    trained = Placed.groups[1:]  # the first is the rehearsal
    assert all(seeds == trained[0] for seeds in trained)
    assert len(trained[0]) == 10


def test_nobody_changes_place_when_a_run_goes_on(tmp_path: Path) -> None:
    whole = votes_of(Placed(), cache=tmp_path)
    for path in sorted(tmp_path.glob("votes-*.npy"))[:4]:
        path.unlink()
    Placed.groups.clear()
    assert np.array_equal(votes_of(Placed(), cache=tmp_path), whole)
    assert len(Placed.groups[1]) == 10


def test_networks_of_a_group_are_the_same_wherever_the_generators_stand() -> None:
    """A factory that draws from numpy: each network has its own start."""

    def factory() -> nn.Module:
        module = nn.Linear(3, 3)
        with torch.no_grad():
            module.weight.copy_(torch.tensor(np.random.normal(size=(3, 3))))
        return module

    teachers = NetworkTeachers(factory, cache_key="numpy", steps=3, group=4)
    part = (ROWS[:40], LABELS[:40])

    def answer(seeds: list[int]) -> list[Any]:
        count = len(seeds)
        return teachers.vote_together([part] * count, [QUERIES] * count, classes=3, seeds=seeds)

    assert answer([1, 2, 3])[2].tolist() == answer([9, 8, 3])[2].tolist()
    assert answer([1, 2, 3])[2].tolist() == answer([3])[0].tolist()


def test_kinds_and_column_sets_of_any_number_meet_as_they_should() -> None:
    met: list[tuple[str, int]] = []

    def kind(word: str) -> Any:
        def teacher(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
            met.append((word, X.shape[1]))
            return np.zeros(len(queries), dtype=np.int64)

        return teacher

    votes_of([kind("a"), kind("b")], columns=[[0], [0, 1], [0, 1, 2]], teachers=12)
    trained = met[6:]
    assert sorted(trained) == sorted([("ab"[t % 2], t % 3 + 1) for t in range(12)])
    assert sorted(met[:6]) == sorted({*trained})


def test_threads_do_not_show_the_warnings_of_one_another(recwarn: pytest.WarningsRecorder) -> None:
    """Filters of warnings belong to the process; here an unfiltered warning is an error."""

    def warning(X: Any, y: Any, queries: Any, *, classes: int, seed: int) -> Any:
        time.sleep(0.01 * (seed % 3))
        warnings.warn("a record of 1e5", stacklevel=1)
        return np.ones(len(queries), dtype=np.int64)

    with joblib.parallel_config(backend="threading", n_jobs=4):
        found = votes_of(warning, teachers=24)
    assert found.tolist() == [[0, 24, 0]] * 30
    assert not [one for one in recwarn if "record" in str(one.message)]


@pytest.mark.parametrize(
    "teacher",
    [
        lambda X, y, queries, *, classes, seed: np.zeros(len(queries), dtype=np.int64),
        NetworkTeachers(lambda: nn.Linear(60, 3), cache_key="linear", steps=1, group=20),
    ],
    ids=["function", "networks"],
)
def test_the_queries_are_not_copied_for_every_teacher(teacher: Any) -> None:
    rows, asked = np.tile(ROWS, (1, 20)), np.tile(QUERIES, (50, 20))
    parts = partition_records(rows, LABELS, teachers=40, insecure_seed=1)
    rehearse(teacher, asked, classes=3)  # loads what is loaded once
    tracemalloc.start()
    teacher_votes(parts, rows, LABELS, asked, teacher=teacher, classes=3)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * asked.nbytes  # 40 copies of them would be
