"""Times the frequency oracles of pure-ldp and multi-freq-ldpy; runs in an environment of its own.

    python local_peer.py PEOPLE DOMAIN ...

Reads lines ``ORACLE DOMAIN`` from standard input, so that its runs stand between those of others,
and answers each with the CPU seconds of clients and server together, scaled linearly to a million
people. The first line that it writes is the JSON list of its oracles.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
MILLION = 1_000_000
# On 100,000 values an oracle that visits all of them for each report takes minutes.
FEW_VALUES, FEW_PEOPLE = 100_000, 50
ORACLES = ("pure-ldp DE", "pure-ldp OLH", "multi-freq-ldpy GRR", "multi-freq-ldpy OLH")


def pure_ldp(kind: str, domain: int, values: np.ndarray) -> float:
    from pure_ldp.frequency_oracles import DEClient, DEServer, LHClient, LHServer

    # Its values count from 1.
    client_kind, server_kind = {"DE": (DEClient, DEServer), "OLH": (LHClient, LHServer)}[kind]
    more = {"use_olh": True} if kind == "OLH" else {}
    client, server = client_kind(1, domain, **more), server_kind(1, domain, **more)
    start = time.process_time()
    for value in values:
        server.aggregate(client.privatise(int(value) + 1))
    server.estimate_all(range(1, domain + 1))
    return time.process_time() - start


def multi_freq(kind: str, domain: int, values: np.ndarray) -> float:
    if kind == "GRR":
        from multi_freq_ldpy.pure_frequency_oracles.GRR import GRR_Aggregator_MI, GRR_Client

        start = time.process_time()
        reports = [GRR_Client(int(value), domain, 1) for value in values]
        GRR_Aggregator_MI(reports, domain, 1)
        return time.process_time() - start
    from multi_freq_ldpy.pure_frequency_oracles.LH import LH_Aggregator_MI, LH_Client

    start = time.process_time()
    reports = [LH_Client(int(value), domain, 1, optimal=True) for value in values]
    LH_Aggregator_MI(reports, domain, 1, optimal=True)
    return time.process_time() - start


def main() -> None:
    people = int(sys.argv[1])
    print(json.dumps(ORACLES), flush=True)
    warmed = set()
    for line in sys.stdin:
        name, _, text = line.strip().rpartition(" ")
        domain = int(text)
        package, kind = name.split()
        run = pure_ldp if package == "pure-ldp" else multi_freq
        count = min(people, FEW_PEOPLE) if domain >= FEW_VALUES else people
        values = np.random.default_rng(domain).integers(0, domain, count)
        if name not in warmed:
            run(kind, 8, values[:3] % 8)  # imports and compiles
            warmed.add(name)
        print(run(kind, domain, values) * MILLION / count, flush=True)


if __name__ == "__main__":
    main()
