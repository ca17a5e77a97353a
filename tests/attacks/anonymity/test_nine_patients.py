"""Nine patients: two releases, each 2-anonymous and 2-diverse, together say what one person has."""

from discreet.attacks import measure_anonymity

FIRST = """60-70 m heart
60-70 f arthritis
60-70 m lung
60-70 f Crohn
60-70 m lung
50-60 f HIV
50-60 m Lyme
50-60 m allergies
50-60 f colitis"""
SECOND = """50-60 f HIV
50-60 f migraine
50-60 m gout
50-60 m asthma"""


def read(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def diagnoses(rows: list[list[str]]) -> set[str]:
    return {diagnosis for age, sex, diagnosis in rows if (age, sex) == ("50-60", "f")}


def test_each_release_is_anonymous_and_both_together_name_the_disease() -> None:
    for rows in (read(FIRST), read(SECOND)):
        table = dict(zip(("age", "sex", "diagnosis"), zip(*rows, strict=True), strict=True))
        profile = measure_anonymity(
            table, quasi_identifiers=["age", "sex"], sensitive=["diagnosis"]
        ).profile
        assert (profile.k, profile.unique_rows, profile.sensitive[0].distinct_l) == (2, 0, 2)
        assert len(diagnoses(rows)) == 2
    assert diagnoses(read(FIRST)) & diagnoses(read(SECOND)) == {"HIV"}
