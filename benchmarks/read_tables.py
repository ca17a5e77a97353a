"""Reading a table larger than it may be in memory: speed and peak memory.

Writes a CSV file of about 200 MB and the same table as Parquet into a temporary directory and
reads each in a process of its own, as features in batches. Prints one line for each.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from discreet.data import Categorical, Encoding, Integer, Real, Schema, table_batches

COLUMNS = {
    "age": Integer(17, 90),
    "height": Real(0.5, 2.5),
    "income": Real(0, 1e6),
    "ward": Categorical(["north", "south", "east", "west"]),
    "ill": Categorical(["yes", "no"], other="no"),
}
BY_ROW = Schema(COLUMNS, target="ill")
BY_PERSON = Schema(COLUMNS, target="ill", person="patient", rows_per_person=3)
PART = 100_000


def write(folder: Path, megabytes: int) -> None:
    """Write the table as CSV and Parquet, and a tenth of it as CSV with quotes in the cells."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(1)
    writer = None
    with (folder / "table.csv").open("w") as plain, (folder / "quoted.csv").open("w") as quoted:
        heading = "patient,age,height,income,ward,ill,remark\n"
        plain.write(heading)
        quoted.write(heading)
        while plain.tell() < megabytes * 1_000_000:
            columns = {
                "patient": rng.integers(0, 500_000, PART).astype(str),
                "age": rng.integers(0, 100, PART),
                "height": np.round(rng.normal(1.7, 0.2, PART), 4),
                "income": np.round(rng.lognormal(10, 1, PART), 2),
                "ward": rng.choice(["north", "south", "east", "west", "?"], PART),
                "ill": rng.choice(["yes", "no"], PART),
                "remark": rng.choice(["nothing to say about this", ""], PART),
            }
            rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
            plain.writelines(",".join(map(str, row)) + "\n" for row in rows)
            quoted.writelines(
                ",".join(f'"{cell} ""q"""' for cell in row) + "\n" for row in rows[: PART // 10]
            )
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(folder / "table.parquet", table.schema)
            writer.write_table(table)
    if writer is not None:
        writer.close()


def read(path: Path, unit: str) -> None:
    """Read one file and print figures as JSON."""
    schema = BY_ROW if unit == "row" else BY_PERSON
    encoding = Encoding(schema)
    start, used = time.perf_counter(), time.process_time()
    rows, total = 0, 0.0
    for batch in table_batches(path, schema):
        features = encoding.features(batch)
        rows += len(features)
        total += float(features.sum()) + float(encoding.target(batch).sum())
    seconds, used = time.perf_counter() - start, time.process_time() - used
    # Not ru_maxrss, which a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024
    size = path.stat().st_size / 1e6
    figures = {"rows": rows, "MB": size, "seconds": seconds, "cpu_seconds": used}
    print(json.dumps({"file": path.name, "unit": unit, **figures, "peak_MB": peak, "sum": total}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--read", nargs=2, metavar=("FILE", "UNIT"))
    options = parser.parse_args()
    if options.read:
        read(Path(options.read[0]), options.read[1])
        return
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), options.megabytes)
        for file, unit in [
            ("table.csv", "row"),
            ("table.csv", "person"),
            ("quoted.csv", "row"),
            ("table.parquet", "row"),
        ]:
            path = str(Path(name) / file)
            subprocess.run([sys.executable, __file__, "--read", path, unit], check=True)


if __name__ == "__main__":
    main()
