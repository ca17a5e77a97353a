"""Run a plan in Flower's simulation engine, with Ray: ``simulated.py DIRECTORY [NODES]``.

``simulated.py DIRECTORY NODES ROUNDS KILLED`` has the directory for a checkpoint, and its
process is killed when the nodes have answered this round; 0 for none.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np


def simulate(directory: str, nodes: int, rounds: int = 2, killed: int | None = None) -> None:
    """Run some rounds of some nodes, each of which moves every number by a tenth."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from discreet.federated import DiscreetStrategy, FederatedPlan, discreet_mod

    plan = FederatedPlan(
        clients=nodes,
        expected_cohort=nodes,
        rounds=rounds,
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
        while len(list(grid.get_node_ids())) < nodes:
            time.sleep(0.1)
        start = ArrayRecord({"w": Array(np.zeros((2, 2), np.float32))})
        begin = time.perf_counter()
        strategy = DiscreetStrategy(plan, grid.get_node_ids())
        if killed is None:
            strategy.start(grid, start).save(directory)
        else:
            ask, answered = grid.send_and_receive, iter(range(1, rounds + 1))

            def ask_and_die(messages: Any, **given: Any) -> Any:
                replies = list(ask(messages, **given))
                if next(answered) == killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                return replies

            grid.send_and_receive = ask_and_die
            strategy.start(grid, start, checkpoint=directory)
        print(f"seconds {time.perf_counter() - begin:.3f}", file=sys.stderr)

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server, client, num_supernodes=nodes, backend_config={"client_resources": resources}
    )


if __name__ == "__main__":
    simulate(sys.argv[1], *([int(one) for one in sys.argv[2:]] or [4]))
