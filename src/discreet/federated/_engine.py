"""A whole federated run in one process: charge, ask, train clients side by side, certify.

For research and tests: the clients are rows of tensors, and their local training is vectorised
with ``torch.func``. What a client sends and what the server makes of it is :class:`Client` and
:class:`Round`, as on a network. Under ``trust="aggregation"`` the sum is formed directly; it is bit
for bit the one of :class:`SecureServer`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from discreet import _validate
from discreet._files import new_directory
from discreet.certificate import Certificate
from discreet.errors import InvalidValue
from discreet.federated._certificate import (
    LEARNER,
    certify_federated,
    forbid_more,
    require_no_plan,
    write_federated,
)
from discreet.federated._clients import Clients
from discreet.federated._plan import FederatedPlan
from discreet.federated._round import Client, Round
from discreet.federated._state import RunState, charge_run, check_ledger
from discreet.learn import digest_model
from discreet.ledger import Ledger
from discreet.randomness import (
    CorrelatedStream,
    KeyedSource,
    Source,
    bernoulli,
    permutation,
    uniform_integers,
)
from discreet.randomness import source as random_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

Losses = Callable[[Tensor, Tensor], Tensor]
Watch = Callable[[int, Mapping[str, float]], None]
Hostile = Mapping[int, Callable[["NDArray[np.float64]"], object]]


@final
@dataclass(frozen=True)
class Training:
    """How clients train and the server steps; all of it public.

    Parameters
    ----------
    local_steps : int
        How many steps of gradient descent a client takes in a round.
    batch : int, optional
        How many examples each of them is on, in turn; by default all.
    local_rate : float
        Their learning rate.
    server_rate, momentum : float
        The server's, on the mean update.
    decay : float
        The server's rate falls in a line to this share of itself in the last round.
    average : float
        The released model is the exponential average of the rounds' models with this decay; 0 for
        the last one.
    """

    local_steps: int = 1
    batch: int | None = None
    local_rate: float = 0.1
    server_rate: float = 1.0
    momentum: float = 0.9
    decay: float = 1.0
    average: float = 0.0

    def __post_init__(self) -> None:
        _validate.integer("local_steps", self.local_steps, at_least=1)
        if self.batch is not None:
            _validate.integer("batch", self.batch, at_least=1)
        for name in ("local_rate", "server_rate"):
            _validate.real(name, getattr(self, name), above=0)
        for name in ("momentum", "average"):
            _validate.real(name, getattr(self, name), at_least=0, below=1)
        _validate.real("decay", self.decay, above=0, at_most=1)


@final
@dataclass(frozen=True, eq=False)
class Federated:
    """A trained model with its certificate; all of it may be released.

    Parameters
    ----------
    model : nn.Module
        With the released parameters.
    certificate : Certificate
        That of the run.
    history : tuple of dict
        Figures on public validation data, each with its round.
    """

    model: nn.Module
    certificate: Certificate
    history: tuple[Mapping[str, float], ...] = ()

    def save(self, directory: str | Path) -> None:
        """Write ``model.npz`` and ``certificate.json`` to a new directory.

        Parameters
        ----------
        directory : path
            One that does not exist yet.
        """
        with new_directory(directory, argument="directory") as place:
            write_federated(place, _arrays_of(self.model), self.certificate)


@final
class InProcessEngine:
    """Runs plans with clients in memory.

    Parameters
    ----------
    clients : Clients
        Their examples.
    model : nn.Module
        What is trained: without buffers, which would be private outputs, and without dropout.
    loss : callable
        From outputs and targets to one loss for each example.
    training : Training
        Learning rates and local steps.
    """

    def __init__(
        self, clients: Clients, model: nn.Module, loss: Losses, training: Training | None = None
    ) -> None:
        if not isinstance(clients, Clients):
            raise InvalidValue("clients", type(clients).__name__, "Clients")
        buffers = [name for name, _ in model.named_buffers()]
        if buffers:
            raise InvalidValue(
                "model",
                f"buffers {buffers[:3]}",
                "parameters alone: what a client counts in a buffer is a private output that "
                "nothing pays for (GroupNorm in place of BatchNorm)",
            )
        self._clients, self._model, self._loss = clients, model, loss
        self._training = Training() if training is None else training
        named = [(name, p.detach()) for name, p in model.named_parameters()]
        if not named or len({p.dtype for _, p in named}) > 1:
            raise InvalidValue("model", type(model).__name__, "parameters of one type")
        self._names, self._shapes = [n for n, _ in named], [p.shape for _, p in named]
        self._start = torch.cat([p.reshape(-1) for _, p in named])

    @property
    def size(self) -> int:
        """How many parameters the model has: the dimension of plans without a trusted server."""
        return self._start.numel()

    def run(
        self,
        plan: FederatedPlan,
        *,
        ledger: Ledger | None = None,
        dataset: str | None = None,
        purpose: str = "federated learning",
        checkpoint: str | Path | None = None,
        validation: tuple[Tensor, Tensor] | None = None,
        validate_every: int | None = None,
        progress: bool | None = None,
        watch: Watch | None = None,
        examples: NDArray[np.int64] | None = None,
        hostile: Hostile | None = None,
        insecure_seed: int | None = None,
    ) -> Federated:
        """Charge the plan, run its rounds and certify the model.

        Parameters
        ----------
        plan : FederatedPlan
            What to do.
        ledger, dataset : Ledger and str, optional
            What to charge, before a client is asked.
        purpose : str
            For the ledger.
        checkpoint : path, optional
            A directory with which a killed run can be resumed by the same call: it is charged once,
            and no round is taken twice.
        validation : pair of Tensor, optional
            *Public* inputs and targets; accuracy and loss on them are kept.
        validate_every : int, optional
            In rounds; by default ten times in all.
        progress : bool, optional
            Whether a bar is shown; by default on a terminal.
        watch : callable, optional
            Called with the number of rounds taken and the latest public figures.
        examples : array of int, optional
            The example counts that clients weigh by; by default those of ``Clients``.
        hostile : mapping of int to callable, optional
            For experiments: clients that do not run the program. Each sends what its function
            returns for the update that it would have had, as a reply of its own making.
        insecure_seed : int, optional
            For experiments: all noise follows from it.

        Returns
        -------
        Federated

        Raises
        ------
        InvalidValue
            If plan, model and clients do not fit together; nothing was charged.
        PlanViolation
            If the model was trained privately before; nothing was charged.
        BudgetExceeded
            If the budget is too small; nothing was charged.
        ResumeRefused
            If the directory is of another run, or of one that is complete.
        MechanismHalted
            If too few clients are left for a round; the plan was charged.
        """
        self._check(plan, ledger, dataset)
        bits = random_source(insecure_seed=insecure_seed)
        with ExitStack() as stack:
            state = None
            if checkpoint is not None:
                state = RunState(checkpoint, plan, {"training": asdict(self._training)})
                stack.callback(state.close)
            if state is not None:
                bits = bits.derive("attempt", state.attempt)
            self._rehearse()
            paid = stack.enter_context(ExitStack())
            charge = paid.enter_context(charge_run(ledger, dataset, plan, state, purpose))
            counts = self._clients.counts if examples is None else examples
            assert counts is not None
            run = _Run(self, plan, bits, state, counts, hostile or {})
            history: list[Mapping[str, float]] = []
            every = max(1, plan.rounds // 10) if validate_every is None else validate_every
            shown = sys.stderr.isatty() if progress is None else progress
            with _bar(plan, shown=shown) as advance:
                while run.taken < plan.rounds:
                    run.take_round()
                    if validation is not None and (
                        run.taken % every == 0 or run.taken == plan.rounds
                    ):
                        figures = self._judge(run.released, validation)
                        history.append({"round": run.taken, **figures})
                    latest = history[-1] if history else {}
                    advance(run.taken, latest)
                    if watch is not None:
                        watch(run.taken, latest)
            arrays = self._arrays(run.released)
            certificate = certify_federated(
                plan,
                run={
                    "rounds_taken": run.taken,
                    "final_clip_norm": run.clip_norm,
                    "training": asdict(self._training),
                    "clients": "simulated in one process",
                    **({"times_resumed": state.attempt} if state and state.attempt else {}),
                },
                randomness=run.provenance,
                versions={"torch": str(torch.__version__)},
                model_digest=digest_model(LEARNER, {}, arrays),
            )
            certificate = certificate.paid_by(charge)
            if state is not None:
                state.hold_back(arrays, certificate)
            paid.close()  # the outcome is in the ledger before the model is in its place
            if state is not None:
                state.publish(certificate.model_digest)
        self._load_weights(run.released)
        forbid_more(self._model)
        return Federated(self._model, certificate, tuple(history))

    # --- checks ------------------------------------------------------------------------

    def _check(self, plan: FederatedPlan, ledger: Ledger | None, dataset: str | None) -> None:
        if not isinstance(plan, FederatedPlan):
            raise InvalidValue("plan", type(plan).__name__, "a FederatedPlan")
        require_no_plan(self._model)
        if plan.dimension not in (None, self.size):
            raise InvalidValue(
                "plan", f"dimension {plan.dimension}", f"that of the model, {self.size}"
            )
        public = plan.trust != "server" or plan.central.public_examples
        if public and len(self._clients) != plan.clients:
            raise InvalidValue(
                "clients", len(self._clients), f"the public number {plan.clients} of the plan"
            )
        check_ledger(plan, ledger, dataset)

    def _rehearse(self) -> None:
        """Train two clients of zeros, so that what cannot be done shows before the charge."""
        rows = self._clients
        zeros = Clients(
            torch.zeros((2, *rows.inputs.shape[1:]), dtype=rows.inputs.dtype),
            torch.zeros((2, *rows.targets.shape[1:]), dtype=rows.targets.dtype),
        )
        try:
            updates = self._updates(self._start, zeros, np.arange(2))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise InvalidValue(
                "model",
                type(self._model).__name__,
                f"a model and a loss that can be vectorised over clients ({error})",
            ) from None
        if updates.shape != (2, self.size):
            raise InvalidValue("loss", tuple(updates.shape), "one loss for each example")

    # --- local training ----------------------------------------------------------------

    def updates(self, who: Sequence[int], *, parameters: Tensor | None = None) -> Tensor:
        """Return what clients propose, unclipped: for experiments without a guarantee.

        Parameters
        ----------
        who : sequence of int
            Positions of clients.
        parameters : Tensor, optional
            Those that the server sends, as one row; by default those of the model at the start.

        Returns
        -------
        Tensor
            One row for each client.
        """
        start = self._start if parameters is None else parameters.to(self._start.dtype)
        return self._updates(start, self._clients, np.asarray(who, dtype=np.int64))

    def _updates(self, start: Tensor, clients: Clients, who: NDArray[np.int64]) -> Tensor:
        """Return what clients propose, one row each: their own parameters less the server's."""
        made, shown = self._training, clients.inputs.shape[1]
        batch = shown if made.batch is None else min(made.batch, shown)
        assert clients.counts is not None

        def local_loss(flat: Tensor, inputs: Tensor, targets: Tensor, real: Tensor) -> Tensor:
            outputs = functional_call(self._model, self._split(flat), (inputs,))
            losses = self._loss(outputs, targets)
            return (losses * real).sum() / real.sum().clamp(min=1.0)

        def local(inputs: Tensor, targets: Tensor, real: Tensor) -> Tensor:
            flat = start
            for step in range(made.local_steps):
                first = step * batch % max(1, shown - shown % batch)
                rows = slice(first, first + batch)
                slope = grad(local_loss)(flat, inputs[rows], targets[rows], real[rows])
                flat = flat - made.local_rate * slope
            return flat - start

        rows = torch.from_numpy(who)
        counts = torch.from_numpy(clients.counts[who])
        real = (torch.arange(shown)[None, :] < counts[:, None]).to(start.dtype)
        together = vmap(local, in_dims=(0, 0, 0), chunk_size=_TOGETHER)
        found: Tensor = together(clients.inputs[rows], clients.targets[rows], real)
        return found

    def _replies(self, start: Tensor, who: NDArray[np.int64]) -> Tensor:
        """Return what clients propose; one whose own records raise proposes to change nothing."""
        try:
            return self._updates(start, self._clients, who)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - such as an unknown label: an error would tell of it
            if len(who) == 1:
                return torch.zeros_like(start)[None]
        half = len(who) // 2
        return torch.cat([self._replies(start, who[:half]), self._replies(start, who[half:])])

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [shape.numel() for shape in self._shapes])
        return {
            name: part.view(shape)
            for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }

    def _arrays(self, flat: Tensor) -> dict[str, NDArray[Any]]:
        return {name: part.numpy().copy() for name, part in self._split(flat).items()}

    def _load_weights(self, flat: Tensor) -> None:
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self._split(flat)[name])

    def _judge(self, flat: Tensor, validation: tuple[Tensor, Tensor]) -> dict[str, float]:
        inputs, targets = validation
        with torch.no_grad():
            parts = [
                functional_call(self._model, self._split(flat), (x,))
                for x in torch.split(inputs, 1000)
            ]
            outputs = torch.cat(parts)
            figures = {"validation loss": float(self._loss(outputs, targets).mean())}
        if outputs.ndim == 2 and targets.ndim == 1 and not targets.is_floating_point():
            figures["accuracy"] = float((outputs.argmax(1) == targets).double().mean())
        return figures


# Clients whose training is vectorised together: more do not fit the caches.
_TOGETHER = 50


@final
class _Run:
    """The rounds of one run: the model, the cohorts, and what is kept between rounds."""

    def __init__(
        self,
        engine: InProcessEngine,
        plan: FederatedPlan,
        bits: Source,
        state: RunState | None,
        counts: NDArray[np.int64],
        hostile: Hostile,
    ) -> None:
        self._hostile = hostile
        self._engine, self.plan, self._bits, self._state = engine, plan, bits, state
        self.model = engine._start.double()
        self._velocity = torch.zeros_like(self.model)
        self._average = self.model.clone()
        self._averaged = 0
        self.clip_norm = plan.clip_norm
        self.taken = 0
        everybody = len(engine._clients)
        weighs = plan.weight_cap is not None
        self._people = [
            Client(
                plan,
                examples=int(counts[who]) if weighs else None,
                source=bits.derive("client", who),
            )
            for who in range(everybody)
        ]
        self._used = np.zeros(everybody, dtype=np.int64)
        groups = plan.central.groups if plan.trust == "server" else 1
        self._groups = uniform_integers(groups, everybody, source=bits.derive("groups"))
        self._keys: list[tuple[int, bytes]] = []
        if state is not None and state.found is not None:
            self._continue(*state.found)
        self._correlated = self._stream()

    @property
    def released(self) -> Tensor:
        """The parameters that are released: the last ones, or their average."""
        model = self._average if self._engine._training.average else self.model
        return model.to(self._engine._start.dtype)

    @property
    def provenance(self) -> dict[str, str]:
        """Where the randomness of the run came from."""
        return {**self._bits.provenance, "engine": "in process"}

    def _stream(self) -> CorrelatedStream | None:
        noise = self.plan.noise
        if noise is None:
            return None
        # A new key for each attempt: two copies of a run must not add the same noise.
        self._keys.append((self.taken, self._bits.derive("noise").read(32)))
        given = self._bits.provenance
        keys = [(start, KeyedSource(key, provenance=given)) for start, key in self._keys]
        return CorrelatedStream(noise.coefficients, inverse=noise.inverse, keys=keys)

    def _continue(self, head: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        assert self._state is not None
        self.model, self._velocity, self._average = (
            torch.from_numpy(arrays[name]) for name in ("model", "velocity", "average")
        )
        self._averaged, self.clip_norm = int(head["averaged"]), float(head["clip_norm"])
        self._used, self._groups = arrays["used"], arrays["groups"]
        starts, keys = arrays["starts"].tolist(), arrays["keys"]
        self._keys = [(s, key.tobytes()) for s, key in zip(starts, keys, strict=True)]
        for person, used in zip(self._people, self._used.tolist(), strict=True):
            person._taken = used
        self.taken = self._state.reserved

    def take_round(self) -> None:
        """Ask a cohort and step the model; the round is on the disk before anybody is asked."""
        plan, number = self.plan, self.taken
        who = self._cohort(number)
        if plan.trust != "server":
            self._used[who] += 1
        if self._state is not None:
            keys = np.frombuffer(b"".join(key for _, key in self._keys), dtype=np.uint8)
            self._state.keep(
                {"averaged": self._averaged, "clip_norm": self.clip_norm},
                {
                    "model": self.model.numpy(),
                    "velocity": self._velocity.numpy(),
                    "average": self._average.numpy(),
                    "used": self._used,
                    "groups": self._groups,
                    "starts": np.array([start for start, _ in self._keys], dtype=np.int64),
                    "keys": keys.reshape(-1, 32),
                },
                reserved=number + 1,
            )
        self.taken = number + 1
        one = Round(
            plan,
            number,
            size=self._engine.size,
            asked=who.tolist(),
            clip_norm=self.clip_norm,
            source=self._bits,
            correlated=self._correlated,
        )
        if who.size:
            start = self.model.to(self._engine._start.dtype)
            rows = self._engine._replies(start, who).double().numpy()
            for client, update in zip(who.tolist(), rows, strict=True):
                made = self._hostile.get(client)
                if made is not None:
                    one.receive(client, made(update))
                    continue
                reply = self._people[client].reply(update, clip_norm=self.clip_norm)
                one.receive(client, reply)
        update, self.clip_norm = one.finish()
        self._step(torch.from_numpy(update))

    def _step(self, update: Tensor) -> None:
        made = self._engine._training
        share = self.taken / self.plan.rounds
        rate = made.server_rate * (1.0 - (1.0 - made.decay) * share)
        self._velocity = made.momentum * self._velocity + update
        self.model = self.model + rate * self._velocity
        self._averaged += 1
        keep = min(made.average, self._averaged / (9.0 + self._averaged))
        self._average = keep * self._average + (1.0 - keep) * self.model

    def _cohort(self, number: int) -> NDArray[np.int64]:
        """Draw the clients of a round; where nobody trusts the server, it may choose any."""
        plan, everybody = self.plan, len(self._people)
        bits = self._bits.derive("cohort", number)
        if plan.sampler == "chosen":
            willing = np.flatnonzero(self._used < plan.participations)
            chosen = permutation(willing.size, source=bits)[: plan.expected_cohort]
            return np.sort(willing[chosen])
        if plan.sampler == "full":
            return np.arange(everybody)
        if plan.sampler == "without_replacement":
            return np.sort(permutation(everybody, source=bits)[: plan.expected_cohort])
        central = plan.central
        turn = self._groups == number % central.groups
        if plan.sampler == "fixed_bins":
            return np.flatnonzero(turn)
        rate = Fraction(central.rate_of(central.phases[0]))
        drawn = bernoulli(rate, everybody, source=bits)
        return np.flatnonzero(drawn & turn)


@contextmanager
def _bar(
    plan: FederatedPlan, *, shown: bool
) -> Iterator[Callable[[int, Mapping[str, float]], None]]:
    """Show the rounds on a terminal: public numbers only."""
    if not shown:
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=plan.rounds, text="")

        def advance(taken: int, figures: Mapping[str, float]) -> None:
            text = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
            bar.update(task, completed=taken, text=text)

        yield advance


def _arrays_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
