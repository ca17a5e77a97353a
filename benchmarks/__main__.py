"""Run benchmarks, record them, and write what the documentation quotes.

python benchmarks run NAME [--quick] [--only PART ...]
python benchmarks record NAME [--reason TEXT]
python benchmarks figures [--check]
"""

from __future__ import annotations

import argparse
import os
import sys

# Timings beside peers are of one thread each; this must be set before numpy is imported.
ONE_THREAD = {"accounting", "curator_engine", "synth"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure, beside the targets; writes build/bench only")
    run.add_argument("name")
    run.add_argument(
        "--quick", action="store_true", help="little of everything, not to be recorded"
    )
    run.add_argument("--only", nargs="+", default=[], help="these parts only")
    record = commands.add_parser("record", help="take the last run into benchmarks/results")
    record.add_argument("name")
    record.add_argument("--reason", help="why a run that missed a target is recorded")
    figures = commands.add_parser("figures", help="write tables, pictures and numbers of the docs")
    figures.add_argument("--check", action="store_true", help="only list what differs")
    options = parser.parse_args()
    if getattr(options, "name", None) in ONE_THREAD:
        for library in ("OMP", "OPENBLAS", "MKL"):
            os.environ[f"{library}_NUM_THREADS"] = "1"
    import harness

    if options.command == "figures":
        wrong = harness.figures(check=options.check)
        print("\n".join(wrong) or "the documentation shows the records")
        return 1 if wrong else 0
    if options.name not in harness.SUITES:
        parser.error(f"NAME = {options.name}: expected one of {', '.join(harness.SUITES)}")
    if options.command == "record":
        harness.take(options.name, reason=options.reason)
        harness.figures(names=[options.name])
        return 0
    return harness.report(harness.run_suite(options.name, quick=options.quick, only=options.only))


if __name__ == "__main__":
    sys.exit(main())
