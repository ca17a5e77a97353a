"""One round: what a client sends, and what a server makes of it. Arrays in, one array out.

A reply holds one thing, the ``update``; with an adaptive clip also ``inside``, one bit. The server
believes nothing: it clips again, and turns away what is no reply. What happens to each:

=========================================  =====================================================
a reply                                    counts as
=========================================  =====================================================
a number in it is NaN or infinite          an update of zeros
longer than the clip norm, however long    clipped
zeros                                      what it is: a round of zeros is a round
other fields, another shape or type        nothing (``refused``)
of somebody who was not asked              nothing (``not asked``)
the second one of a client                 nothing (``repeated``); the first one stays
of another round, or after the end         nothing (``late``)
none at all                                nothing; the denominator is planned and stays
=========================================  =====================================================

None of it stops a round or raises an error: one client must not be able to, and the error would
tell of it. Only secure aggregation and a shuffler end without a result where too few reply. What
became of replies is private, and not to be published.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from discreet import _validate
from discreet.errors import InvalidValue, MechanismHalted
from discreet.federated._plan import FederatedPlan, draw_share
from discreet.learn.dpsgd import Quantile
from discreet.local import VectorOracle
from discreet.randomness import CorrelatedStream, NormalStream, Source, choose_source

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Update = NDArray[np.float64]

# Norms are computed in floating point, and sums are taken on a grid: both stay below the bound.
_MARGIN = 1.0 - 2.0**-15


def clip_update(update: Any, clip_norm: float) -> Update:
    """Return an update of at most this length; what is not finite becomes zeros.

    Parameters
    ----------
    update : array
        Numbers.
    clip_norm : float
        The largest length.

    Returns
    -------
    array of float64
    """
    values = np.array(update, dtype=np.float64).reshape(-1)
    largest = float(np.abs(values).max(initial=0.0))
    if not math.isfinite(largest):  # NaN is the largest there is
        return np.zeros_like(values)
    if largest == 0.0:
        return values
    bound = clip_norm * _MARGIN
    # Divided first: squares of huge and of tiny numbers leave the range of doubles.
    scaled = values / largest
    length = math.sqrt(float((scaled * scaled).sum()))
    if largest * length <= bound:
        return values
    clipped: Update = scaled * (bound / length)
    return clipped


def to_steps(plan: FederatedPlan, update: Update, clip_norm: float) -> NDArray[np.int64]:
    """Return a clipped update in whole steps, of which ``plan.l2_squared`` is the largest square.

    Parameters
    ----------
    plan : FederatedPlan
        That of the run.
    update : array
        Numbers.
    clip_norm : float
        The length of ``plan.steps_per_clip`` steps.

    Returns
    -------
    array of int64
    """
    norm = _validate.real("clip_norm", clip_norm, above=0)
    steps = np.rint(clip_update(update, norm) * (plan.steps_per_clip / norm))
    if not (np.abs(steps) <= plan.steps_per_clip).all():  # their squares would leave the integers
        steps = np.zeros_like(steps)
    whole = steps.astype(np.int64)
    # Rounding moves no coordinate by more than one half, so this holds; it is not left to floats.
    return whole if int(whole @ whole) <= plan.l2_squared else np.zeros_like(whole)


@final
class Client:
    """A client's side: it clips, weighs and randomizes before anything leaves, and counts rounds.

    Parameters
    ----------
    plan : FederatedPlan
        The published plan.
    examples : int, optional
        How many examples the client has, where the plan weighs clients. It is not sent.
    source : Source, optional
        Where the bits come from; the operating system by default.
    rounds_taken : int
        In how many rounds the client took part before.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        *,
        examples: int | None = None,
        source: Source | None = None,
        rounds_taken: int = 0,
    ) -> None:
        if (examples is None) != (plan.weight_cap is None):
            raise InvalidValue("examples", examples, "a number if the plan has a weight_cap")
        self._plan = plan
        self._weight = 1.0
        if plan.weight_cap is not None:
            count = _validate.integer("examples", examples, at_least=0)
            self._weight = min(count / plan.weight_cap, 1.0)
        self._source = choose_source(source)
        self._taken = _validate.integer("rounds_taken", rounds_taken, at_least=0)
        self._guard = threading.Lock()

    @property
    def rounds_taken(self) -> int:
        """In how many rounds the client took part."""
        return self._taken

    def reply(self, update: Any, *, clip_norm: float | None = None) -> dict[str, Any]:
        """Return what leaves the client for a round.

        Parameters
        ----------
        update : array
            The change of the parameters that the client proposes.
        clip_norm : float, optional
            That of the round. Unless it is adaptive, it is that of the plan, whoever says what.

        Returns
        -------
        dict
            ``update``, and ``inside`` with an adaptive clip.

        Raises
        ------
        InvalidValue
            If the clip norm is not one of this plan; nothing was drawn or counted.
        MechanismHalted
            If the client took part as often as the plan allows, whatever its data.
        """
        plan = self._plan
        norm = plan.clip_norm
        if isinstance(plan.clipping, Quantile):
            norm = _validate.real("clip_norm", norm if clip_norm is None else clip_norm, above=0)
        elif clip_norm not in (None, norm):
            raise InvalidValue("clip_norm", clip_norm, f"that of the plan, {norm}")
        with self._guard:
            if self._taken >= plan.participations:
                raise MechanismHalted(
                    f"this client took part in {self._taken} rounds, which is all that is paid for"
                )
            self._taken += 1
        if plan.trust in ("shuffler", "nobody"):
            oracle = oracle_of(plan)
            values = np.array(update, dtype=np.float64).reshape(1, -1)
            return {"update": oracle.randomize_each(values, source=self._source)[0]}
        clipped = clip_update(update, norm)
        if plan.trust == "aggregation":
            share = draw_share(plan, clipped.size, self._source)
            return {"update": to_steps(plan, clipped * self._weight, norm) + share}
        reply: dict[str, Any] = {"update": clipped * self._weight}
        if isinstance(plan.clipping, Quantile):
            # Shorter than the clip, so left as it was; a sum of squares that overflows is not.
            given = np.array(update, dtype=np.float64).reshape(-1)
            with np.errstate(over="ignore", invalid="ignore"):
                reply["inside"] = bool(float((given * given).sum()) <= norm * norm)
        return reply


class Finished(NamedTuple):
    """What a round releases: the mean update, and the clip norm of the next round."""

    update: Update
    clip_norm: float


@final
class Round:
    """The server's side of one round.

    Parameters
    ----------
    plan : FederatedPlan
        That of the run.
    number : int
        That of the round, from 0.
    size : int
        How many parameters there are.
    asked : iterable of str or int
        The clients of this round.
    clip_norm : float, optional
        That of the round; by default the plan's.
    source : Source, optional
        Where the noise comes from; the operating system by default.
    correlated : CorrelatedStream, optional
        The noise, where the plan correlates it.
    """

    def __init__(
        self,
        plan: FederatedPlan,
        number: int,
        *,
        size: int,
        asked: Iterable[str | int],
        clip_norm: float | None = None,
        source: Source | None = None,
        correlated: CorrelatedStream | None = None,
    ) -> None:
        self.number = _validate.integer("number", number, at_least=0, at_most=plan.rounds - 1)
        self._size = _validate.integer("size", size, at_least=1)
        if plan.dimension not in (None, self._size):
            raise InvalidValue("size", size, f"the dimension {plan.dimension} of the plan")
        if (correlated is None) != (plan.trust != "server" or plan.noise is None):
            raise InvalidValue("correlated", correlated, "a stream if the plan correlates noise")
        self._plan = plan
        self.asked = frozenset(asked)
        self._clip = plan.clip_norm if clip_norm is None else float(clip_norm)
        self._source, self._correlated = choose_source(source), correlated
        self._heard: set[str | int] = set()
        self._open = True
        self._counted = 0
        self._inside = 0
        self._sum = np.zeros(self._size, dtype=np.int64)
        # At most sqrt(size) / 2 cells of error, which the margin of the clip leaves room for.
        self._cell = 2.0 ** math.floor(
            math.log2(self._clip * (1.0 - _MARGIN) / math.sqrt(self._size))
        )
        oracle = oracle_of(plan) if plan.trust in ("shuffler", "nobody") else None
        self._reports = None if oracle is None else oracle.server()
        self.reply_size = self._size if oracle is None else oracle.report_bytes
        self.tally: Counter[str] = Counter()
        """What became of replies, by the words of the module: private."""

    def receive(self, client: str | int, reply: object, *, number: int | None = None) -> str:
        """Take a reply, and say what became of it.

        Parameters
        ----------
        client : str or int
            Whose it is, as authenticated by the transport.
        reply : object
            What arrived.
        number : int, optional
            The round that it says it is of.

        Returns
        -------
        str
            ``counted``, or why not. It is private.
        """
        word = self._take(client, reply, number)
        self.tally[word] += 1
        return word

    def _take(self, client: str | int, reply: object, number: int | None) -> str:
        if not self._open or number not in (None, self.number):
            return "late"
        if client not in self.asked:
            return "not asked"
        if client in self._heard:
            return "repeated"
        update = self._read(reply)
        if update is None:
            return "refused"
        self._heard.add(client)
        self._counted += 1
        if self._reports is not None:
            self._reports.aggregate(update)
        elif self._plan.trust == "aggregation":
            self._sum += update  # modulo 2^64, as secure aggregation adds
        else:
            assert isinstance(reply, Mapping)
            self._inside += int(reply.get("inside", 0))
            self._sum += np.rint(clip_update(update, self._clip) / self._cell).astype(np.int64)
        return "counted"

    def _read(self, reply: object) -> Any:
        """Return the update of a reply, or None if it is none."""
        plan = self._plan
        bits = plan.trust == "server" and isinstance(plan.clipping, Quantile)
        if not isinstance(reply, Mapping) or set(reply) != {"update"} | (
            {"inside"} if bits else set()
        ):
            return None
        update = reply["update"]
        if not isinstance(update, np.ndarray) or (bits and type(reply["inside"]) is not bool):
            return None
        if self._reports is not None:
            report = update.tobytes() if update.dtype == np.uint8 else None
            return report if self._reports.refusal(report) is None else None
        wanted = np.int64 if plan.trust == "aggregation" else np.float64
        return update if update.shape == (self._size,) and update.dtype == wanted else None

    def receive_sum(self, total: NDArray[np.int64], replies: int) -> None:
        """Take the sum that secure aggregation gave, in place of single replies.

        Parameters
        ----------
        total : array of int64
            The sum of what clients sent, modulo 2^64.
        replies : int
            Of how many clients.
        """
        if self._plan.trust != "aggregation" or self._counted:
            raise InvalidValue("total", "a sum", "one under trust='aggregation', and no replies")
        if total.shape != (self._size,) or total.dtype != np.int64:
            raise InvalidValue("total", f"{total.dtype} {total.shape}", f"int64 ({self._size},)")
        self._sum, self._counted = total.copy(), replies

    def finish(self) -> Finished:
        """End the round and return what it releases, once.

        Returns
        -------
        Finished
            The mean update over the planned denominator, with noise.

        Raises
        ------
        MechanismHalted
            If fewer replied than the threshold: there would be too little noise. The round is
            over and its loss is spent.
        """
        if not self._open:
            raise MechanismHalted("a round ends once: a second end would be a second release")
        self._open = False
        plan = self._plan
        if plan.threshold is not None and self._counted < plan.threshold:
            raise MechanismHalted(
                f"fewer than {plan.threshold} clients replied to round {self.number}: its sum is "
                "not opened, and its loss is spent"
            )
        if self._reports is not None:
            if not self._counted:
                return Finished(np.zeros(self._size), self._clip)
            mean = self._reports.estimate().mean
            return Finished(self._clip * mean * (self._counted / plan.denominator), self._clip)
        if plan.trust == "aggregation":
            length = self._clip / plan.steps_per_clip
            mean = self._sum.astype(np.float64) * (length / plan.denominator)
            return Finished(mean, self._clip)
        assert plan.noise_multiplier is not None
        deviation = plan.noise_multiplier * self._clip
        normals = NormalStream(source=self._source.derive("noise", self.number))
        if self._correlated is None:
            noise = normals.array(self._size, stddev=deviation)
        else:
            noise = self._correlated.array(self.number, self._size, stddev=deviation)
        update: Update = (self._sum * self._cell + noise) / plan.denominator
        return Finished(update, self._next_clip(normals))

    def _next_clip(self, normals: NormalStream) -> float:
        """Return the clip of the next round: with a rule, by its noisy count of centred bits."""
        rule = self._plan.clipping
        if not isinstance(rule, Quantile):
            return self._clip
        count = self._inside - 0.5 * self._counted
        return rule.next_clip_norm(
            count + float(normals.array(1, stddev=rule.count_stddev)[0]),
            clip_norm=self._clip,
            initial=self._plan.clip_norm,
            expected_batch_size=self._plan.expected_cohort,
        )


def oracle_of(plan: FederatedPlan) -> VectorOracle:
    """Return the randomizer of unit vectors by which clients report their directions."""
    assert plan.dimension is not None
    return VectorOracle(plan.dimension, plan.local_epsilon)
