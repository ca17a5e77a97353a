"""Plans on Flower: a strategy for the server, a mod for clients. What they compute is elsewhere.

Flower carries messages; what a client sends is made by :class:`Client`, and what the server makes
of it by :class:`Round`, as in one process. Flower 1.41 is imported when it is used. Its packages do
not fit into the environment that Discreet is tested in: ``make test-flower`` has one of its own.

The strategy does not trust what arrives. A reply is one array record with one array of the model's
size; metrics, example counts and anything else beside it have the reply refused. Bytes are read by
their header and never unpickled. Nodes that are connected are private: cohorts are drawn from the
*roster*, the nodes that are enrolled, and one that is away is a drop-out.

Secure aggregation and shufflers need parties that Flower's messages do not have, so the trust is in
the server or in nobody.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from fractions import Fraction
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from discreet import _validate
from discreet._files import lock_file, new_directory, write_file
from discreet._json import canonical, digest_of, read_json
from discreet.certificate import Certificate
from discreet.errors import InvalidValue, MechanismHalted
from discreet.federated._certificate import LEARNER, certify_federated, write_federated
from discreet.federated._plan import FederatedPlan
from discreet.federated._round import Client, Round
from discreet.federated._state import RunState, charge_run, check_ledger
from discreet.learn import digest_model
from discreet.learn.dpsgd import Quantile
from discreet.randomness import bernoulli, choose_source, permutation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.ledger import Ledger
    from discreet.randomness import Source

    Arrays = Mapping[str, NDArray[Any]]

_TRUSTS = ("server", "nobody")
_SAMPLERS = ("poisson", "without_replacement", "full", "chosen")
_HEADER = 1 << 10


def _read_array(array: Any, size: int, kind: str) -> NDArray[Any] | None:
    """Return a serialized array of exactly this size and type, or None; nothing is unpickled."""
    data = getattr(array, "data", None)
    if getattr(array, "stype", None) != "numpy.ndarray" or not isinstance(data, bytes):
        return None
    wanted = np.dtype(kind)
    if not size * wanted.itemsize < len(data) <= size * wanted.itemsize + _HEADER:
        return None
    stream = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            return None
        shape, fortran, found = np.lib.format.read_array_header_1_0(stream)
    except (ValueError, SyntaxError, EOFError):
        return None
    body = data[stream.tell() :]
    if shape != (size,) or fortran or found != wanted or len(body) != size * wanted.itemsize:
        return None
    return np.frombuffer(body, dtype=wanted).copy()


def _read_reply(content: Any, plan: FederatedPlan, size: int) -> dict[str, Any] | None:
    """Return what :meth:`Round.receive` takes, or None if a reply holds anything else."""
    bits = plan.trust == "server" and isinstance(plan.clipping, Quantile)
    if set(content) != {"update"} | ({"inside"} if bits else set()):
        return None
    records = content.array_records
    if set(records) != {"update"} or set(records["update"]) != {"update"}:
        return None
    kind = "u1" if plan.trust == "nobody" else "f8"
    update = _read_array(records["update"]["update"], size, kind)
    if update is None:
        return None
    if not bits:
        return {"update": update}
    config = content.config_records.get("inside")
    if config is None or set(config) != {"inside"} or type(config["inside"]) is not bool:
        return None
    return {"update": update, "inside": config["inside"]}


class _Counter:
    """A file in which a client counts the rounds of a plan over all runs of Flower."""

    def __init__(self, path: str | Path, plan: FederatedPlan) -> None:
        self._path, self._plan = Path(path), plan.content_hash
        self.read()

    def read(self) -> int:
        if not self._path.exists():
            return 0
        body = read_json(self._path.read_bytes(), "the counter of a client")
        taken = body.get("rounds_taken") if isinstance(body, dict) else None
        if type(taken) is not int or taken < 0 or body.get("plan_hash") != self._plan:
            raise InvalidValue(
                "counter", self._path.name, "a new file, or the counter of this plan"
            )
        return taken

    def write(self, taken: int) -> None:
        content = canonical({"plan_hash": self._plan, "rounds_taken": taken})
        write_file(self._path, content, private=True)


def discreet_mod(
    plan: FederatedPlan,
    *,
    examples: int | None = None,
    source: Source | None = None,
    counter: str | Path | None = None,
) -> Callable[[Any, Any, Callable[[Any, Any], Any]], Any]:
    """Return a mod for ``ClientApp(mods=[...])``: it clips and randomizes before anything leaves.

    The app below it trains as it likes and replies with the whole model in one array record called
    ``arrays``, of the names that it was sent. Only the change of it leaves the client; metrics and
    counts stay, and so does the text of an error, in place of which an update of zeros leaves.

    Parameters
    ----------
    plan : FederatedPlan
        The published plan.
    examples : int, optional
        How many examples the client has, where the plan weighs clients. It is not sent.
    source : Source, optional
        Where the bits come from; the operating system by default.
    counter : path, optional
        A file of this client, in which it counts the rounds that it takes part in. Without one it
        counts in its Flower context, which every run begins anew: a server that is not trusted can
        then start a second run and be answered again.

    Returns
    -------
    callable

    Raises
    ------
    InvalidValue
        If the plan's trust is not one that Flower can carry, or the counter is that of another one.
    """
    _check_plan(plan)
    bits = choose_source(source)
    over_runs = None if counter is None else _Counter(counter, plan)

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        app = import_module("flwr.app")
        if message.metadata.message_type != app.MessageType.TRAIN:
            return app.Message(
                app.Error(code=0, reason="this client answers training messages only"),
                reply_to=message,
            )
        sent = message.content.array_records["arrays"]
        names = list(sent)
        before = _flat({name: sent[name].numpy() for name in names})
        clip_norm = float(message.content.config_records["round"]["clip-norm"])
        change = np.zeros_like(before)
        try:
            made = call_next(message, context).content.array_records["arrays"]
            after = _flat({name: made[name].numpy() for name in names})
            change = after - before if list(made) == names else change
        except Exception:  # noqa: BLE001 - what went wrong with the data must not leave either
            change = np.zeros_like(before)
        with nullcontext() if counter is None else lock_file(counter):
            state = context.state.config_records.get("discreet")
            taken = 0 if state is None else int(state["rounds-taken"])
            if over_runs is not None:
                taken = max(taken, over_runs.read())
            client = Client(plan, examples=examples, source=bits, rounds_taken=taken)
            try:
                leaves = client.reply(change, clip_norm=clip_norm)
            except (InvalidValue, MechanismHalted) as error:  # of the request, not of the data
                return app.Message(app.Error(code=0, reason=str(error)), reply_to=message)
            context.state["discreet"] = app.ConfigRecord({"rounds-taken": client.rounds_taken})
            if over_runs is not None:
                over_runs.write(client.rounds_taken)
        content = {"update": app.ArrayRecord({"update": app.Array(leaves["update"])})}
        if "inside" in leaves:
            content["inside"] = app.ConfigRecord({"inside": leaves["inside"]})
        return app.Message(app.RecordDict(content), reply_to=message)

    return mod


@final
@dataclass(frozen=True, eq=False)
class FlowerRun:
    """The released parameters of a run on Flower, by name, with their certificate."""

    arrays: Arrays
    certificate: Certificate

    def save(self, directory: str | Path) -> None:
        """Write ``model.npz`` and ``certificate.json`` to a new directory.

        Parameters
        ----------
        directory : path
            One that does not exist yet.
        """
        with new_directory(directory, argument="directory") as place:
            write_federated(place, self.arrays, self.certificate)


@final
class DiscreetStrategy:
    """The server's side of a plan, for the main function of a ``ServerApp``.

    Parameters
    ----------
    plan : FederatedPlan
        The plan, of trust ``server`` or ``nobody``, with independent noise.
    roster : iterable of int
        The nodes that are enrolled. It is fixed before the run, and not who happens to be online.
    server_rate, momentum : float
        The server's step on the mean update.
    timeout : float, optional
        Seconds to wait for the replies of a round; what comes later is late.
    source : Source, optional
        Where the bits come from; the operating system by default.

    Raises
    ------
    InvalidValue
        If plan and roster do not fit together.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        roster: Iterable[int],
        *,
        server_rate: float = 1.0,
        momentum: float = 0.0,
        timeout: float | None = 3600.0,
        source: Source | None = None,
    ) -> None:
        _check_plan(plan)
        self._plan = plan
        self._roster = sorted(set(roster))
        public = plan.trust != "server" or plan.central.public_examples
        if not self._roster or (public and len(self._roster) != plan.clients):
            raise InvalidValue("roster", len(self._roster), f"the {plan.clients} nodes of the plan")
        self._rate = _validate.real("server_rate", server_rate, above=0)
        self._momentum = _validate.real("momentum", momentum, at_least=0, below=1)
        self._timeout = timeout
        self._source = choose_source(source)
        self._used = dict.fromkeys(self._roster, 0)

    def start(
        self,
        grid: Any,
        initial_arrays: Any,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "federated learning on Flower",
        checkpoint: str | Path | None = None,
    ) -> FlowerRun:
        """Charge the plan, ask the clients of every round, and certify the model.

        Without a checkpoint a server that is killed has spent its charge, and its run is over.

        Parameters
        ----------
        grid : Grid
            That of the server app.
        initial_arrays : ArrayRecord
            Where the model starts, which is public.
        ledger, dataset : Ledger and str, optional
            What to charge, before a node is asked.
        purpose : str
            For the ledger.
        checkpoint : path, optional
            A directory with which a killed run can be resumed by the same call: it is charged once,
            and no round is taken twice.

        Returns
        -------
        FlowerRun

        Raises
        ------
        InvalidValue
            If the arrays are not floating point, or not of the plan's dimension; nothing was
            charged.
        BudgetExceeded
            If the budget is too small; nothing was charged.
        ResumeRefused
            If the directory is of another run, or of one that is complete.
        """
        app, plan = import_module("flwr.app"), self._plan
        shapes = {name: one.numpy() for name, one in initial_arrays.items()}
        if not shapes or any(one.dtype.kind != "f" for one in shapes.values()):
            kinds = sorted({str(one.dtype) for one in shapes.values()})
            expected = "floating point: counts in buffers are private outputs that nothing pays for"
            raise InvalidValue("initial_arrays", kinds, expected)
        model = _flat(shapes)
        if plan.dimension not in (None, model.size):
            raise InvalidValue("initial_arrays", model.size, f"the dimension {plan.dimension}")
        check_ledger(plan, ledger, dataset)
        training = {"server_rate": self._rate, "momentum": self._momentum}
        velocity, clip_norm, taken = np.zeros_like(model), plan.clip_norm, 0
        with ExitStack() as stack:
            bits, state = self._source, None
            if checkpoint is not None:
                state = RunState(checkpoint, plan, self._facts(shapes, training))
                stack.callback(state.close)
                bits = bits.derive("attempt", state.attempt)
                if state.found is not None:
                    head, kept = state.found
                    model, velocity = (kept[name].astype(float) for name in ("model", "velocity"))
                    clip_norm, taken = float(head["clip_norm"]), state.reserved
                    self._used = dict(zip(self._roster, kept["used"].tolist(), strict=True))
            paid = stack.enter_context(ExitStack())
            charge = paid.enter_context(charge_run(ledger, dataset, plan, state, purpose))
            for number in range(taken, plan.rounds):
                cohort = self._cohort(number, bits)
                if state is not None:
                    used = np.array(list(self._used.values()), dtype=np.int64)
                    kept = {"model": model, "velocity": velocity, "used": used}
                    state.keep({"clip_norm": clip_norm}, kept, reserved=number + 1)
                one = Round(
                    plan,
                    number,
                    size=model.size,
                    asked=cohort,
                    clip_norm=clip_norm,
                    source=bits,
                )
                self._ask(app, grid, one, _split_arrays(model, shapes), clip_norm)
                update, clip_norm = one.finish()
                velocity = self._momentum * velocity + update
                model = model + self._rate * velocity
            arrays = _split_arrays(model, shapes)
            certificate = certify_federated(
                plan,
                run={
                    "rounds_taken": plan.rounds,
                    "final_clip_norm": clip_norm,
                    "training": training,
                    "clients": "nodes of Flower",
                    **({"times_resumed": state.attempt} if state and state.attempt else {}),
                },
                randomness={**self._source.provenance, "engine": "Flower"},
                versions={"flwr": version("flwr")},
                model_digest=digest_model(LEARNER, {}, arrays),
            ).paid_by(charge)
            if state is not None:
                state.hold_back(arrays, certificate)
            paid.close()  # the outcome is in the ledger before the model is in its place
            if state is not None:
                state.publish(certificate.model_digest)
        return FlowerRun(arrays, certificate)

    def _facts(self, shapes: Arrays, training: Mapping[str, float]) -> dict[str, Any]:
        """Return what a resumed run must have in common with the one that was killed.

        Nodes have other numbers after a new start of Flower. That matters where the server counts
        in how many rounds each takes part.
        """
        counts = self._plan.participations < self._plan.rounds
        model = [[name, str(one.dtype), list(one.shape)] for name, one in shapes.items()]
        return {
            "training": dict(training),
            "roster": digest_of(self._roster if counts else len(self._roster)),
            "model": digest_of(model),
        }

    def _cohort(self, number: int, source: Source) -> list[int]:
        """Draw the nodes of a round from the roster, whoever is connected."""
        plan, bits = self._plan, source.derive("cohort", number)
        if plan.sampler == "full":
            return self._roster
        if plan.sampler == "poisson":
            rate = Fraction(plan.central.rate_of(plan.central.phases[0]))
            drawn = bernoulli(rate, len(self._roster), source=bits)
            return [node for node, there in zip(self._roster, drawn, strict=True) if there]
        mixed = [self._roster[place] for place in permutation(len(self._roster), source=bits)]
        if plan.sampler == "without_replacement":  # anew in every round, whoever took part before
            return sorted(mixed[: plan.expected_cohort])
        # Those who took part least often come first, so that the last rounds have their cohorts.
        willing = [one for one in mixed if self._used[one] < plan.participations]
        cohort = sorted(sorted(willing, key=self._used.__getitem__)[: plan.expected_cohort])
        for node in cohort:
            self._used[node] += 1
        return cohort

    def _ask(self, app: Any, grid: Any, one: Round, arrays: Arrays, clip_norm: float) -> None:
        """Send the model to a cohort and hand its replies to the round; who is away drops out."""
        config = app.ConfigRecord({"number": one.number, "clip-norm": float(clip_norm)})
        record = app.ArrayRecord({name: app.Array(each) for name, each in arrays.items()})
        content = app.RecordDict({"arrays": record, "round": config})
        there = set(grid.get_node_ids())
        messages = [
            app.Message(
                content,
                dst_node_id=node,
                message_type=app.MessageType.TRAIN,
                group_id=str(one.number),
            )
            for node in sorted(one.asked)
            if node in there
        ]
        size = one.reply_size
        for reply in grid.send_and_receive(messages, timeout=self._timeout) if messages else ():
            facts = reply.metadata
            number = int(facts.group_id) if facts.group_id.isdecimal() else -1
            held = None if reply.has_error() else _read_reply(reply.content, self._plan, size)
            one.receive(facts.src_node_id, held, number=number)


def _check_plan(plan: FederatedPlan) -> None:
    if not isinstance(plan, FederatedPlan):
        raise InvalidValue("plan", type(plan).__name__, "a FederatedPlan")
    if plan.trust not in _TRUSTS:
        raise InvalidValue("plan", f"trust {plan.trust!r}", "server or nobody, on Flower")
    if plan.sampler not in _SAMPLERS or plan.noise is not None:
        raise InvalidValue("plan", plan.sampler, f"{', '.join(_SAMPLERS)} and independent noise")


def _flat(arrays: Arrays) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(one, dtype=np.float64).ravel() for one in arrays.values()])


def _split_arrays(flat: NDArray[np.float64], like: Arrays) -> dict[str, NDArray[Any]]:
    found, at = {}, 0
    for name, one in like.items():
        part = flat[at : at + one.size]
        found[name] = part.reshape(one.shape).astype(one.dtype)
        at += one.size
    return found
