"""Processes that race for one budget.

    python benchmarks/ledger_race.py PLACE --processes 16 --attempts 10000 --fit 8000

Every attempt costs 1/FIT of the budget, so exactly FIT of them can be granted. PLACE is the path
of a new SQLite ledger, or a ``postgresql://`` URL. Prints JSON: grants, refusals, grants a second
until the last grant, and whether every grant is on the chain.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

from discreet.errors import BudgetExceeded
from discreet.ledger import Ledger
from discreet.privacy import PureDP


def race(place: str, *, processes: int, attempts: int, fit: int) -> dict[str, object]:
    with Ledger.create(place) as ledger:
        ledger.create_dataset("census", epsilon=1, unit="person")
    start_read, start_write = os.pipe()
    shares = [attempts // processes + (i < attempts % processes) for i in range(processes)]
    pipes = []
    for share in shares:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(start_write)
            _contend(place, share, f"1/{fit}", start_read, write)
        os.close(write)
        pipes.append((child, read))
    os.close(start_read)
    time.sleep(1.0)  # all of them have opened the ledger by now
    began = time.monotonic()
    os.close(start_write)
    grants: list[list[object]] = []
    refused, last = 0, began
    for child, read in pipes:
        with os.fdopen(read) as lines:
            report = json.load(lines)
        grants += report["grants"]
        refused += report["refused"]
        last = max(last, report["last"])
        _, status = os.waitpid(child, 0)
        assert status == 0, "a process of the race failed"
    with Ledger.open(place) as ledger:
        chain = {row.seq: row.hash for row in ledger.history("census")}
        spent = ledger.show("census").budget.spent["basic"]
        verdict = ledger.verify()
    return {
        "processes": processes,
        "attempts": attempts,
        "granted": len(grants),
        "refused": refused,
        "spent": str(spent),
        "seconds": round(last - began, 3),
        "charges_per_second": round(len(grants) / (last - began), 1),
        "every_grant_on_chain": sorted(chain.items()) == sorted((s, h) for s, h in grants),
        "verified": verdict.ok,
    }


def _contend(place: str, share: int, epsilon: str, start: int, report: int) -> None:
    code = 1
    try:
        loss, grants, refused, last = PureDP(epsilon), [], 0, 0.0
        with Ledger.open(place) as ledger:
            ledger.datasets()
            os.read(start, 1)  # ends when the parent closes its side
            for _ in range(share):
                try:
                    charge = ledger.charge("census", loss)
                except BudgetExceeded:
                    refused += 1
                else:
                    grants.append((charge.seq, charge.hash))
                    last = time.monotonic()
        with os.fdopen(report, "w") as out:
            json.dump({"grants": grants, "refused": refused, "last": last}, out)
        code = 0
    finally:
        os._exit(code)  # a process of its own: nothing of the parent may run here


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("place")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=10_000)
    parser.add_argument("--fit", type=int, default=8_000)
    options = parser.parse_args()
    place = options.place
    result = race(
        place if "://" in place else str(Path(place)),
        processes=options.processes,
        attempts=options.attempts,
        fit=options.fit,
    )
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
