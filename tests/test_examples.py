"""The scripts of examples/ run as they stand, and print what they promise."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

# What each script prints, as a pattern for all of it; noisy numbers are any numbers.
PRINTED = {
    "account": r"training alone: epsilon between 2\.3816 and 2\.3817 at delta 1e-5\n"
    r"by Renyi divergences: at most 2\.60\nwith the count: at most 2\.39\n",
    "attack_model": r"(\w[\w ]*: \d+% of members at 10 % false accusations, "
    r"between \d+% and \d+%\n){2}",
    "audit_run": r"proved: at most 3\.61; audited: at least \d\.\d\d with confidence 95%, "
    r"of \d\.\d\d that it could have shown\nverdict: (consistent|too weak to tell)\n",
    "curator": r"the count will cost DiscreteLaplace\(scale=30\.0, sensitivity=3\) and be off .*\n"
    r"-?\d+\.0, between .*\n-?\d+\.\d, between .*\nleft of epsilon: 19/10\n",
    "label_with_pate": r"fit will charge epsilon \d\.\d\d\nlabels paid for: \d+\n"
    r"right about \d+% of the records \(a private figure\)\n",
    "synthesize": r"of \d+ synthetic rows \d+% are ill; of the records 38%\n"
    r"(\w[\w ]*: between \d+% and \d+%\n){5}",
    "train_network": r"epsilon at most 4\.00 at delta 0\.0001\nright about \d+% of new people\n",
    "train_table": r"epsilon at most 0\.900 at delta 1e-05\nages 20 and 80: (no|yes) (no|yes)\n"
    r"a second fit is refused: the budget 'dataset' cannot pay .*\n",
    "verify_certificate": r"it states epsilon 1\.000:\n(  (right|not checked): .*\n)+"
    r"it states epsilon 0\.500:\n(  .*\n)*  WRONG: epsilon is that of the loss\n(  .*\n)*",
}


def test_every_example_is_listed_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == PRINTED.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.fullmatch(PRINTED[name], printed), printed
