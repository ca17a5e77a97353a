"""Times the frequency oracles of pure-ldp and multi-freq-ldpy; runs in an environment of its own.

    python local_peer.py PEOPLE DOMAIN ...

Prints JSON: for every oracle and domain the CPU seconds of clients and server together, scaled
linearly to a million people.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
MILLION = 1_000_000


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
    people, domains = int(sys.argv[1]), [int(text) for text in sys.argv[2:]]
    found: dict[str, dict[str, float]] = {}
    for name, kind, run in (
        ("pure-ldp DE", "DE", pure_ldp),
        ("pure-ldp OLH", "OLH", pure_ldp),
        ("multi-freq-ldpy GRR", "GRR", multi_freq),
        ("multi-freq-ldpy OLH", "OLH", multi_freq),
    ):
        for domain in domains:
            count = min(people, 200) if domain >= 100_000 else people
            values = np.random.default_rng(domain).integers(0, domain, count)
            run(kind, domain, values[:3])  # imports and compiles
            seconds = run(kind, domain, values) * MILLION / count
            found.setdefault(name, {})[str(domain)] = seconds
            print(name, domain, count, round(seconds, 2), file=sys.stderr)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
