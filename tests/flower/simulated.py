"""Run a plan in Flower's simulation engine, with Ray: ``python simulated.py DIRECTORY``."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

NODES = 4


def simulate(directory: str) -> None:
    """Run two rounds of four nodes, each of which moves every number by a tenth."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from discreet.federated import DiscreetStrategy, FederatedPlan, discreet_mod

    plan = FederatedPlan(
        clients=NODES,
        expected_cohort=NODES,
        rounds=2,
        clip_norm=1.0,
        delta=1e-3,
        sampler="full",
        noise_multiplier=1e-9,
    )
    client, server = ClientApp(mods=[discreet_mod(plan)]), ServerApp()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        sent = message.content.array_records["arrays"]
        moved = {name: Array(sent[name].numpy() + np.float32(0.1)) for name in sent}
        return Message(RecordDict({"arrays": ArrayRecord(moved)}), reply_to=message)

    @server.main()
    def main(grid: Any, context: Any) -> None:
        while len(list(grid.get_node_ids())) < NODES:
            time.sleep(0.1)
        start = ArrayRecord({"w": Array(np.zeros((2, 2), np.float32))})
        begin = time.perf_counter()
        DiscreetStrategy(plan, grid.get_node_ids()).start(grid, start).save(directory)
        print(f"seconds {time.perf_counter() - begin:.3f}", file=sys.stderr)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server, client, num_supernodes=NODES, backend_config={"client_resources": resources}
    )


if __name__ == "__main__":
    simulate(sys.argv[1])
