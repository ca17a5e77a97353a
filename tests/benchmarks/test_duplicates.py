"""The duplicate check of `make lint` sees what stands twice, and only that."""

from duplicates import report_duplicates

LINES = "".join(f"    x{n} = f({n})\n" for n in range(9))


def module(body: str) -> dict[str, str]:
    return {name: f'"""{name}."""\n\n{body}' for name in ("one.py", "other.py")}


def test_nine_lines_that_stand_twice_are_found() -> None:
    report = report_duplicates(module(f"def g(f):\n{LINES}"))
    assert "one.py" in report
    assert "other.py" in report
    assert "x8 = f(8)" in report


def test_fewer_lines_interfaces_and_stated_exceptions_are_not() -> None:
    short = "".join(LINES.splitlines(keepends=True)[:7])
    many = ",\n    ".join(f"a{n}" for n in range(20))
    text = "\n    ".join(f"Line {n}." for n in range(20))
    for body in (
        f"def g(f):\n{short}",
        f"from os import (\n    {many}\n)\n",
        f"def g(\n    {many}\n):\n    return 1\n",
        f'def g():\n    """{text}"""\n',
        f"def g(f):\n    # duplicate-code: both are read by hand\n{LINES}",
    ):
        assert report_duplicates(module(body)) == ""


def test_an_exception_needs_a_reason_and_covers_one_function() -> None:
    assert report_duplicates(module(f"def g(f):\n    # duplicate-code\n{LINES}"))
    apart = "def h():\n    # duplicate-code: here only\n    return 1\n\n\n"
    assert report_duplicates(module(f"{apart}def g(f):\n{LINES}"))
