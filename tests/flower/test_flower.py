"""S26: plans on Flower 1.41, and Flower's own mechanisms in the same tests.

`make test-flower` runs this in an environment of its own, because flwr pins what others need
otherwise. Nothing here needs torch: clients move numbers towards their own mean.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.audit import audit_gaussian
from discreet.certificate import Certificate, read_certificate
from discreet.errors import BudgetExceeded, InvalidValue, ResumeRefused
from discreet.federated import (
    Client,
    DiscreetStrategy,
    FederatedPlan,
    Round,
    certified_loss,
    discreet_mod,
)
from discreet.learn.dpsgd import Quantile
from discreet.ledger import Ledger
from discreet.privacy import Gaussian
from discreet.report import verify_certificate

pytestmark = [pytest.mark.judge, pytest.mark.filterwarnings("ignore")]
SIZE = 6


@pytest.fixture(autouse=True)
def _task() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def plan_of(**given: Any) -> FederatedPlan:
    facts = {
        "clients": 20,
        "expected_cohort": 20,
        "rounds": 3,
        "clip_norm": 1.0,
        "delta": 1e-3,
        "sampler": "full",
        "noise_multiplier": 1.0,
    }
    return FederatedPlan(**{**facts, **given})


def start() -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord(
        {"w": Array(np.zeros((2, 2), np.float32)), "b": Array(np.zeros(2, np.float32))}
    )


def towards(goal: float) -> Any:
    """A client app that moves every number by this much, and sends more than it should."""
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    def train(message: Any, context: Any) -> Any:
        sent = message.content.array_records["arrays"]
        moved = {name: Array(sent[name].numpy() + np.float32(goal)) for name in sent}
        content = {"arrays": ArrayRecord(moved), "metrics": MetricRecord({"num-examples": 1234})}
        return Message(RecordDict(content), reply_to=message)

    return train


class Node:
    """One client: its app under a mod, and its own context."""

    def __init__(self, plan: FederatedPlan, app: Any, counter: Path | None = None) -> None:
        from flwr.app import Context, RecordDict

        self.mod, self.app = discreet_mod(plan, counter=counter), app
        self.context = Context(1, 1, {}, RecordDict(), {})

    def __call__(self, message: Any) -> Any:
        return self.mod(message, self.context, self.app)


class Memory:
    """A grid in one process. Nodes may answer with anything, or not at all."""

    def __init__(self, nodes: dict[int, Any], away: tuple[int, ...] = ()) -> None:
        self.nodes, self.away = nodes, away
        self.asked: list[Any] = []
        self.replies: list[Any] = []

    def get_node_ids(self) -> list[int]:
        return [node for node in self.nodes if node not in self.away]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        self.asked += list(messages)
        fresh = []
        for message in messages:
            found = self.nodes[message.metadata.dst_node_id](message)
            fresh += found if isinstance(found, list) else [found]
        self.replies += fresh
        return fresh


def honest(plan: FederatedPlan, goal: float = 0.1) -> dict[int, Any]:
    return {node: Node(plan, towards(goal)) for node in range(1, plan.clients + 1)}


def test_without_noise_it_is_the_mean_of_what_clients_propose() -> None:
    plan = plan_of(noise_multiplier=1e-9, rounds=4)
    done = DiscreetStrategy(plan, range(1, 21)).start(Memory(honest(plan)), start())
    assert set(done.arrays) == {"w", "b"}
    assert done.arrays["w"].shape == (2, 2)
    assert done.arrays["w"].dtype == np.float32
    np.testing.assert_allclose(done.arrays["w"], 0.4, atol=1e-4)


def test_only_the_clipped_update_leaves_a_client() -> None:
    plan = plan_of(rounds=1)
    grid = Memory(honest(plan, goal=1000.0))
    DiscreetStrategy(plan, range(1, 21)).start(grid, start())
    for reply in grid.replies:
        assert set(reply.content) == {"update"}
        update = reply.content["update"]["update"].numpy()
        assert update.shape == (SIZE,)
        assert np.linalg.norm(update) <= 1.0


def test_the_run_is_charged_before_a_node_is_asked_and_certified(tmp_path: Path) -> None:
    plan = plan_of()
    grid = Memory(honest(plan))
    ours = DiscreetStrategy(plan, range(1, 21))
    with Ledger.create(tmp_path / "ledger") as book:
        for name, factor in (("small", 0.5), ("enough", 1.01)):
            book.create_dataset(name, epsilon=plan.epsilon() * factor, delta=2e-3, unit="client")
        with pytest.raises(BudgetExceeded):
            ours.start(grid, start(), ledger=book, dataset="small")
        assert grid.asked == []
        done = ours.start(grid, start(), ledger=book, dataset="enough")
    assert done.certificate.receipt is not None
    assert done.certificate.epsilon == plan.epsilon()
    done.save(tmp_path / "model")
    assert certified_loss(read_certificate(tmp_path / "model")) == plan.loss


class Killed(BaseException):
    """The end of a server's process, as its clients see it."""


class Mortal(Memory):
    """A grid whose server dies after some rounds: before it has asked, or after the replies."""

    def __init__(self, nodes: dict[int, Any], rounds: int, *, asked: bool) -> None:
        super().__init__(nodes)
        self.left, self.after = rounds, asked

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        self.left -= 1
        if self.left < 0:
            if self.after:
                super().send_and_receive(messages)
            raise Killed
        return super().send_and_receive(messages)


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"clipping": Quantile()},
        {"sampler": "poisson", "expected_cohort": 10},
        {
            "trust": "nobody", "noise_multiplier": None, "local_epsilon": 2.0, "dimension": SIZE,
            "sampler": None, "expected_cohort": 5, "participations": 2,
        },
    ],
    ids=str,
)  # fmt: skip
def test_a_killed_server_is_charged_once_and_repeats_no_round(
    tmp_path: Path, given: dict[str, Any], asked: bool
) -> None:
    plan = plan_of(rounds=5, **given)
    nodes = honest(plan)
    with Ledger.create(tmp_path / "ledger") as book:
        book.create_dataset(
            "phones", epsilon=100, delta=0.1, unit="client", relation=plan.loss.relation
        )
        paid = {"ledger": book, "dataset": "phones", "checkpoint": tmp_path / "run"}

        def run(grid: Any, plan: FederatedPlan = plan, rate: float = 1.0, nodes: int = 20) -> Any:
            strategy = DiscreetStrategy(plan, range(1, nodes + 1), server_rate=rate)
            return strategy.start(grid, start(), **paid)

        grid = Mortal(nodes, 2, asked=asked)
        with pytest.raises(Killed):
            run(grid)
        with pytest.raises(ResumeRefused, match="another plan"):
            run(grid, plan_of(rounds=6, **given))
        with pytest.raises(ResumeRefused, match="another training"):
            run(grid, rate=2.0)
        again = Memory(nodes)
        done = run(again)
        rounds = [int(m.metadata.group_id) for m in again.asked]
        assert sorted(set(rounds)) == [3, 4]  # the third one may have been seen
        assert done.certificate.run["times_resumed"] == 1
        assert len(book.history("phones")) == 1
        place = tmp_path / "run" / "model" / "certificate.json"
        assert [one for one in verify_certificate(place, ledger=book) if one.ok is False] == []
        with pytest.raises(ResumeRefused, match="complete"):
            run(again)
    if plan.trust == "nobody":  # what is left of two for each of twenty was asked of five a round
        times = Counter(m.metadata.dst_node_id for m in grid.asked + again.asked)
        assert max(times.values()) <= 2


def test_a_resumed_server_goes_on_from_the_model_of_the_last_whole_round(tmp_path: Path) -> None:
    plan = plan_of(noise_multiplier=1e-9, rounds=4)
    nodes, strategy = honest(plan), DiscreetStrategy(plan, range(1, 21))
    with pytest.raises(Killed):
        strategy.start(Mortal(nodes, 2, asked=True), start(), checkpoint=tmp_path / "run")
    done = strategy.start(Memory(nodes), start(), checkpoint=tmp_path / "run")
    np.testing.assert_allclose(done.arrays["w"], 0.3, atol=1e-4)
    with np.load(tmp_path / "run" / "model" / "model.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["w"], done.arrays["w"])


def test_a_run_that_counts_by_node_is_not_resumed_with_other_nodes(tmp_path: Path) -> None:
    counted = FederatedPlan(
        clients=20, expected_cohort=10, rounds=4, clip_norm=1.0, delta=1e-3, trust="nobody",
        local_epsilon=2.0, dimension=SIZE, participations=2,
    )  # fmt: skip
    for plan, refused in ((counted, True), (plan_of(rounds=4), False)):
        place = tmp_path / plan.trust
        with pytest.raises(Killed):
            DiscreetStrategy(plan, range(1, 21)).start(
                Mortal(honest(plan), 2, asked=False), start(), checkpoint=place
            )
        others = {node + 100: Node(plan, towards(0.1)) for node in range(1, 21)}
        strategy = DiscreetStrategy(plan, others)
        if refused:
            with pytest.raises(ResumeRefused, match="another roster"):
                strategy.start(Memory(others), start(), checkpoint=place)
        else:
            strategy.start(Memory(others), start(), checkpoint=place)


def bomb(data: bytes) -> Any:
    from flwr.app import Array

    return Array(dtype="float64", shape=(SIZE,), stype="numpy.ndarray", data=data)


def header(shape: str, kind: str = "<f8") -> bytes:
    stream = io.BytesIO()
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    stream.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    return stream.getvalue()


def hostile() -> dict[str, Any]:
    """What a client may send in place of an update, each as a function of the message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

    def of(content: dict[str, Any]) -> Any:
        return lambda message: Message(RecordDict(content), reply_to=message)

    def record(value: Any) -> Any:
        return ArrayRecord({"update": value if isinstance(value, Array) else Array(value)})

    good = np.full(SIZE, 0.01)

    def twice(message: Any) -> list[Any]:
        made = of({"update": record(good)})
        return [made(message), made(message)]

    def late(message: Any) -> Any:
        reply = of({"update": record(good)})(message)
        reply.metadata._group_id = "7"
        return reply

    return {
        "metrics beside it": of({"update": record(good), "m": MetricRecord({"n": 1})}),
        "two arrays": of({"update": ArrayRecord({"update": Array(good), "more": Array(good)})}),
        "another name": of({"weights": record(good)}),
        "another shape": of({"update": record(np.ones(SIZE + 1))}),
        "two axes": of({"update": record(np.ones((2, 3)))}),
        "another type": of({"update": record(np.ones(SIZE, np.float32))}),
        "oversize": of({"update": record(np.ones(100_000))}),
        "no array": of({"update": ConfigRecord({"update": 1.0})}),
        "a header that lies": of({"update": record(bomb(header("(1000000000000,)") + bytes(48)))}),
        "a pickle": of({"update": record(bomb(header("(6,)", "|O") + bytes(48)))}),
        "garbage": of({"update": record(bomb(bytes(range(150))))}),
        "an error": lambda message: Message(Error(0, "no"), reply_to=message),
        "not finite": of({"update": record(np.full(SIZE, np.nan))}),
        "huge": of({"update": record(np.full(SIZE, 1e300))}),
        "twice": twice,
        "late": late,
    }


NAMES = (
    *("metrics beside it", "two arrays", "another name", "another shape", "two axes"),
    *("another type", "oversize", "no array", "a header that lies", "a pickle", "garbage"),
    *("an error", "not finite", "huge", "twice", "late"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_client_stops_nothing_and_moves_the_mean_by_its_clip_at_most(name: str) -> None:
    assert set(hostile()) == set(NAMES)
    plan = plan_of(noise_multiplier=1e-9, rounds=1)
    nodes = honest(plan, goal=0.0)
    nodes[7] = hostile()[name]
    done = DiscreetStrategy(plan, range(1, 21)).start(Memory(nodes), start())
    moved = np.concatenate([one.ravel() for one in done.arrays.values()])
    counted = {"huge": 1.0, "twice": 0.01 * math.sqrt(SIZE)}.get(name, 0.0)
    assert np.linalg.norm(moved) == pytest.approx(counted / 20, rel=1e-3, abs=1e-6)


def test_nodes_that_are_away_do_not_move_the_denominator() -> None:
    plan = plan_of(noise_multiplier=1e-9, rounds=1)
    grid = Memory(honest(plan), away=tuple(range(1, 11)))
    done = DiscreetStrategy(plan, range(1, 21)).start(grid, start())
    assert len(grid.asked) == 10
    np.testing.assert_allclose(done.arrays["w"], 0.05, atol=1e-4)
    nobody = Memory(honest(plan), away=tuple(range(1, 21)))
    idle = DiscreetStrategy(plan_of(rounds=1), range(1, 21)).start(nobody, start())
    assert np.abs(idle.arrays["w"]).max() > 0  # an empty round releases noise


def test_an_app_that_fails_or_answers_another_model_is_an_update_of_zeros() -> None:
    from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

    def fails(message: Any, context: Any) -> Any:
        raise RuntimeError("the diagnosis of patient 17")

    def says(message: Any, context: Any) -> Any:
        return Message(Error(0, "the diagnosis of patient 17"), reply_to=message)

    def other(message: Any, context: Any) -> Any:
        made = ArrayRecord({"w": Array(np.ones(9, np.float32))})
        return Message(RecordDict({"arrays": made}), reply_to=message)

    plan = plan_of(noise_multiplier=1e-9, rounds=1)
    for app in (fails, says, other):
        grid = Memory({node: Node(plan, app) for node in range(1, 21)})
        done = DiscreetStrategy(plan, range(1, 21)).start(grid, start())
        assert np.abs(done.arrays["w"]).max() < 1e-6
        assert not any(reply.has_error() for reply in grid.replies)


def test_a_client_that_trusts_nobody_randomizes_and_counts_its_rounds() -> None:
    plan = FederatedPlan(
        clients=20, expected_cohort=10, rounds=4, clip_norm=1.0, delta=1e-3, trust="nobody",
        epsilon=8.0, dimension=SIZE, participations=2,
    )  # fmt: skip
    nodes = honest(plan)
    grid = Memory(nodes)
    DiscreetStrategy(plan, range(1, 21)).start(grid, start())
    assert len(grid.replies) == 40
    assert all(r.content["update"]["update"].numpy().dtype == np.uint8 for r in grid.replies)
    taken = [n.context.state["discreet"]["rounds-taken"] for n in nodes.values()]
    assert taken == [2] * 20
    # A server that asks more often gets no report.
    message = grid.asked[0]
    assert nodes[message.metadata.dst_node_id](message).has_error()


@pytest.mark.parametrize("counted", [True, False])
def test_a_server_that_starts_a_second_run_is_not_answered_by_clients_with_a_counter(
    tmp_path: Path, counted: bool
) -> None:
    facts = {"rounds": 4, "trust": "nobody", "sampler": None, "dimension": SIZE}
    plan = plan_of(**facts, noise_multiplier=None, local_epsilon=2.0, expected_cohort=10,
                   participations=2)  # fmt: skip
    answered = []
    for _ in range(2):  # a run has contexts of its own
        places = {node: tmp_path / f"{node}.json" for node in range(1, 21)}
        nodes = {
            node: Node(plan, towards(0.1), place if counted else None)
            for node, place in places.items()
        }
        grid = Memory(nodes)
        DiscreetStrategy(plan, range(1, 21)).start(grid, start())
        answered.append(sum(not reply.has_error() for reply in grid.replies))
    assert answered == [40, 0 if counted else 40]
    if counted:
        other = plan_of(**facts, noise_multiplier=None, local_epsilon=3.0)
        with pytest.raises(InvalidValue, match="counter"):
            discreet_mod(other, counter=places[1])


def test_the_simulation_can_send_a_mod_to_its_workers(tmp_path: Path) -> None:
    from ray import cloudpickle

    for counter in (None, tmp_path / "counter.json"):
        assert callable(
            cloudpickle.loads(cloudpickle.dumps(discreet_mod(plan_of(), counter=counter)))
        )


def test_an_adaptive_clip_is_sent_and_its_bit_comes_back() -> None:
    plan = plan_of(clipping=Quantile(), noise_multiplier=0.01, clip_norm=0.5, rounds=2)
    grid = Memory(honest(plan, goal=0.001))
    done = DiscreetStrategy(plan, range(1, 21)).start(grid, start())
    assert all(set(reply.content) == {"update", "inside"} for reply in grid.replies)
    assert done.certificate.run["final_clip_norm"] < 0.5


@pytest.mark.parametrize(
    ("given", "roster", "argument"),
    [
        ({"trust": "aggregation", "threshold": 15, "dimension": SIZE, "sampler": None}, 20, "plan"),
        ({"sampler": "without_replacement"}, 19, "roster"),
        ({}, 0, "roster"),
    ],
)
def test_what_flower_cannot_carry_is_refused(given: Any, roster: int, argument: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        DiscreetStrategy(plan_of(**given), range(roster))
    assert refused.value.argument == argument


def test_buffers_of_counts_are_refused_before_the_charge() -> None:
    from flwr.app import Array, ArrayRecord

    grid = Memory({})
    with pytest.raises(InvalidValue, match="buffers"):
        DiscreetStrategy(plan_of(), range(20)).start(
            grid, ArrayRecord({"seen": Array(np.zeros(1, np.int64))})
        )


# --- Flower's own mechanisms (design, section 2.5), run and not retold ---------------------------


def test_1_the_adaptive_clip_of_flower_runs_away() -> None:
    from flwr.server.strategy import DifferentialPrivacyServerSideAdaptiveClipping as Theirs
    from flwr.server.strategy import FedAvg

    norms = {}
    for begin in (0.1, 3.0):
        theirs = Theirs(FedAvg(), 0.1, 100, initial_clipping_norm=begin, clipped_count_stddev=9.0)
        for _ in range(60):
            clipped = 1.0 if theirs.clipping_norm < 1.0 else 0.0  # every update has length 1
            theirs.clipping_norm *= math.exp(
                -theirs.clip_norm_lr * (clipped - theirs.target_clipped_quantile)
            )
        norms[begin] = theirs.clipping_norm
    assert norms[0.1] < 1e-3
    assert norms[3.0] > 1e3


def test_2_the_weighted_mean_of_flower_is_refuted_by_an_audit_and_ours_is_not() -> None:
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    claim = Gaussian(1.0)
    rng = np.random.default_rng(0)

    def theirs(present: bool) -> float:
        contents = []
        for count, value in [(10, 0.0)] * 9 + [(10_000, 1.0)] * present:
            record = ArrayRecord({"u": Array(np.array([value]))})
            facts = MetricRecord({"num-examples": count})
            contents.append(RecordDict({"arrays": record, "metrics": facts}))
        mean = aggregate_arrayrecords(contents, "num-examples")["u"].numpy()[0]
        return float(mean + rng.normal(0, 1.0 / 10))  # noise multiplier 1, clip 1, ten clients

    plan = plan_of(clients=10, expected_cohort=10, rounds=1, weight_cap=100, planned_weight=0.1)

    def ours(present: bool) -> float:
        one = Round(plan, 0, size=1, asked=range(10))
        if present:
            one.receive(9, Client(plan, examples=10_000).reply(np.ones(1)))
        return float(one.finish().update[0])

    verdicts = {}
    for name, release in (("theirs", theirs), ("ours", ours)):
        scores = [[release(present) for _ in range(300)] for present in (True, False)]
        found = audit_gaussian(*scores, loss=claim, delta=1e-5, mechanism="gaussian")
        verdicts[name] = found.verdict
    assert verdicts["theirs"] == "violated"
    assert verdicts["ours"] != "violated"


def test_3_one_reply_that_is_not_finite_spoils_the_model_of_flower() -> None:
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    contents = [
        RecordDict(
            {
                "arrays": ArrayRecord({"u": Array(np.array([value]))}),
                "metrics": MetricRecord({"num-examples": 1}),
            }
        )
        for value in (0.0, 0.0, math.nan)
    ]
    assert math.isnan(aggregate_arrayrecords(contents, "num-examples")["u"].numpy()[0])


def test_4_the_accountant_of_flower_is_sound_and_loose() -> None:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    # What flwr 1.41 composes: Gaussian events without amplification.
    theirs = RdpAccountant().compose(SelfComposedDpEvent(GaussianDpEvent(1.0), 100))
    found = theirs.get_epsilon(1e-5)
    exact = (100 * Gaussian(1.0)).epsilon(delta=1e-5)
    assert exact < found < 1.1 * exact
    ours = FederatedPlan(
        clients=3000, expected_cohort=100, rounds=100, clip_norm=1.0, delta=1e-5,
        noise_multiplier=1.0,
    )  # fmt: skip
    assert found == pytest.approx(96.0, abs=0.5)
    assert ours.epsilon() == pytest.approx(2.348, abs=0.001)


def test_5_the_local_mod_of_flower_adds_less_noise_than_it_says() -> None:
    from flwr.app import Context, RecordDict
    from flwr.clientapp.mod import LocalDpMod

    theirs = LocalDpMod(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)
    plan = plan_of(rounds=1)
    grid = Memory({1: lambda m: m}, away=())
    DiscreetStrategy(plan, range(1, 21)).start(grid, start())
    message = grid.asked[0]
    context = Context(1, 1, {}, RecordDict(), {})
    replies = [theirs(message, context, towards(1.0)) for _ in range(300)]
    found = [r.content["arrays"]["b"].numpy()[0] for r in replies]
    claim = FederatedPlan(
        clients=20, expected_cohort=20, rounds=1, clip_norm=1.0, delta=1e-5, trust="nobody",
        epsilon=10.0, dimension=SIZE,
    )  # fmt: skip
    # An update of length one against one of zeros, in units of the noise that was added.
    apart = (np.mean(found) - 0.0) / np.std(found)
    assert Gaussian(1.0 / apart).epsilon(delta=1e-5) > 100 * claim.epsilon()


def test_6_two_seeds_of_flower_give_one_mask_and_ours_never_do() -> None:
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    from discreet.federated import mask_numbers

    first = bytes(range(32))
    swapped = first[4:8] + first[:4] + first[8:]  # the fold to 32 bits forgets the order
    theirs = [pseudo_rand_gen(seed, 1 << 32, [(50,)])[0] for seed in (first, swapped)]
    np.testing.assert_array_equal(*theirs)
    ours = [mask_numbers(seed, 50) for seed in (first, swapped)]
    assert (ours[0] != ours[1]).all()


# --- the real simulation engine ------------------------------------------------------------------


def end_processes(of: Path) -> list[int]:
    """End by their ids the processes with this directory in their environment."""
    ended = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended by itself, or is another user's
            if os.fsencode(of) in (place / "environ").read_bytes():
                os.kill(int(place.name), signal.SIGTERM)
                ended.append(int(place.name))
    return ended


def run_flower(
    tmp_path: Path, *command: str | Path, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in this environment, with a home of its own for Flower."""
    binaries = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_ADDRESS": "local",  # not a cluster that another run has started
        "RAY_worker_niceness": "0",  # on a busy machine its workers would wait for ever
    }
    (tmp_path / "flwr").mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=500
        )
    finally:
        end_processes(tmp_path)
    assert done.returncode == code, (done.stdout + done.stderr)[-2000:]
    return done


def check_model(place: Path) -> Certificate:
    """Two rounds in which every number moved by a tenth, with the certificate of their plan."""
    with np.load(place / "model.npz", allow_pickle=False) as file:
        np.testing.assert_allclose(file["w"], 0.2, atol=1e-4)
    certificate = read_certificate(place)
    assert certificate.loss == certified_loss(certificate)
    return certificate


def test_the_simulation_engine_runs_a_plan(tmp_path: Path) -> None:
    script = Path(__file__).parent / "simulated.py"
    run_flower(tmp_path, sys.executable, script, tmp_path / "model")
    check_model(tmp_path / "model")


def test_a_simulation_that_is_killed_in_its_second_round_resumes_with_the_third(
    tmp_path: Path,
) -> None:
    script, place = Path(__file__).parent / "simulated.py", tmp_path / "run"
    command = (sys.executable, script, place, "4", "3")
    run_flower(tmp_path, *command, "2", code=-signal.SIGKILL)
    assert not (place / "model").exists()
    run_flower(tmp_path, *command, "0")
    # The second round was seen and is lost; the third one begins with the model of the first.
    certificate = check_model(place / "model")
    assert certificate.run["times_resumed"] == 1
    assert certificate.plan["rounds"] == 3


def test_flwr_run_runs_a_plan_and_leaves_no_process(tmp_path: Path) -> None:
    app, binary = tmp_path / "app", Path(sys.executable).parent / "flwr"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "flower", app)
    out = f'out="{tmp_path / "model"}"'
    run_flower(tmp_path, binary, "run", app, "local", "--stream", "--run-config", out)
    check_model(tmp_path / "model")
    deadline = time.monotonic() + 30
    while end_processes(tmp_path):  # the server that `flwr run` starts would stay for ever
        assert time.monotonic() < deadline
        time.sleep(0.2)
