"""Run several membership attacks on one model: query it once, train shadow models once.

Which attack is quoted is decided on the shadow models (:func:`mark_strongest`): whoever runs
several on the target and quotes the best quotes luck as well, and the interval misses more often
than it says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet import __version__, _validate
from discreet.attacks._contract import ATTACKS
from discreet.attacks._lira import check_lira_models, lira, lira_scores
from discreet.attacks._observation import Observation, observe, observe_split
from discreet.attacks._records import OVERLAPS, check_overlap, record_digests
from discreet.attacks._regression import regression_membership
from discreet.attacks._rmia import check_rmia_models, rmia, rmia_scores
from discreet.attacks._shadow_pool import ShadowPool, paired_halves
from discreet.attacks._shadow_scores import TRIED_FPR, ShadowScores, strength, trials
from discreet.attacks._target import Target, as_target
from discreet.attacks._training import SeededTraining, derive_seed, fresh_seed, on_records
from discreet.attacks._yeom import yeom
from discreet.errors import InvalidValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discreet.attacks._membership import MembershipResult
    from discreet.attacks._shadow_scores import AlignedScores

MEMBERSHIP: dict[str, tuple[str, dict[str, Any]]] = {
    "yeom": ("yeom", {}),
    "quantile": ("quantile_regression", {}),
    "label-only": ("label_only", {}),
    "lira": ("lira", {"mode": "online"}),
    "lira-offline": ("lira", {"mode": "offline"}),
    "rmia": ("rmia", {}),
    "shokri": ("shokri", {}),
}
"""The attacks that :func:`membership_attacks` runs: names in ``ATTACKS``, and settings."""


def needs_shadows(name: str) -> bool:
    """Return whether an attack of ``MEMBERSHIP`` needs shadow models.

    Parameters
    ----------
    name
        A key of ``MEMBERSHIP``.

    Returns
    -------
    bool
        Whether it needs shadow models.
    """
    return "shadows" in ATTACKS[MEMBERSHIP[name][0]].needs


def membership_attacks(
    target: Target,
    names: Sequence[str],
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    public: tuple[Any, Any] | None = None,
    answers_only: bool = False,
    overlap: str = "refuse",
    train: Callable[..., Any] | None = None,
    output: str | None = None,
    shadows: int = 64,
    pool: str | None = None,
    jobs: int = 1,
    seed: int | None = None,
    progress: bool = False,
) -> list[MembershipResult]:
    """Run membership attacks on the same records of one model.

    Parameters
    ----------
    target
        The model under attack.
    names
        Keys of ``MEMBERSHIP``.
    members, nonmembers
        Records and labels that the model was trained on, and others.
    public
        Further records and labels that were not used, for thresholds and for ``quantile``.
    answers_only
        Whether the records are answers of a model: equal answers make no equal records.
    overlap
        What to do about records on both sides: ``"refuse"``, ``"drop"`` or ``"allow"``.
    train
        ``train(records, labels)`` returns a model like the target; needed for shadow models.
    output
        What the trained models give, if they do not say it themselves.
    shadows, pool, jobs, seed, progress
        Of the shadow models: how many, where their answers are kept, processes, the seed, a bar.

    Returns
    -------
    list of MembershipResult
        One for each name. With shadow models one of them is marked as the strongest.

    Raises
    ------
    InvalidValue
        If records or settings are wrong, before any shadow model is trained.
    """
    inputs = membership_inputs(
        target,
        members=members,
        nonmembers=nonmembers,
        public=public,
        answers_only=answers_only,
        overlap=overlap,
        observed=set(names) != {"label-only"},
    )
    scores: ShadowScores | None = None
    if "observation" in inputs:
        seen: Observation = inputs["observation"]
        if any(map(needs_shadows, names)):
            assert train is not None
            trainer = _ReadAs(on_records(train, seen.records, seen.labels), output)
            made = ShadowPool(
                seen.records,
                seen.labels,
                trainer,
                models=shadows,
                classes=seen.classes,
                cache=pool,
                cache_key=_cache_key(train) + ("" if output is None else f" {output}"),
                seed=seed,
                n_jobs=jobs,
                progress=progress,
            )
            for name in names:  # too few models are refused before any is trained
                if name.startswith("lira"):
                    check_lira_models(made.inclusion, mode=MEMBERSHIP[name][1]["mode"])
                elif name == "rmia":
                    check_rmia_models(made.inclusion)
            try:
                inputs["shadows"] = scores = made.run()
            except InvalidValue as error:
                if error.argument != "cache":
                    raise
                expected = (
                    "the scores of this training function; they are of another. Give the function "
                    "an attribute cache_key, a text that you change with it, or take another place"
                )
                raise InvalidValue("pool", pool, expected) from None
    own = {
        "yeom": {"public": inputs.get("public")},
        "quantile": {"seed": seed},
        "shokri": {"seed": seed},
        "label-only": {"public": public, "overlap": overlap, "seed": seed},
    }
    results: list[Any] = [
        ATTACKS[MEMBERSHIP[name][0]](inputs, **MEMBERSHIP[name][1], **own.get(name, {}))
        for name in names
    ]
    if scores is None or not {"yeom", "lira", "lira-offline", "rmia"} & set(names):
        return results
    return [*mark_strongest(results, inputs["observation"], scores)]


def number_membership(
    model: Any,
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    overlap: str = "refuse",
    train: Callable[..., Any] | None = None,
    shadows: int = 64,
    seed: int | None = None,
) -> MembershipResult:
    """Run :func:`regression_membership` on a model that predicts a number.

    Parameters
    ----------
    model
        An estimator with ``predict``.
    members, nonmembers
        Records and true numbers that the model was trained on, and others.
    overlap
        What to do about records on both sides: ``"refuse"``, ``"drop"`` or ``"allow"``.
    train
        ``train(records, values)`` returns a model like the target, for shadow models.
    shadows, seed
        How many shadow models, an even number, and the seed of their halves.

    Returns
    -------
    MembershipResult
        What the errors, or with ``train`` the shadow models, say.

    Raises
    ------
    InvalidValue
        If the values are no numbers, or the records do not fit.
    """
    sides = []
    for name, pair in (("members", members), ("nonmembers", nonmembers)):
        try:
            sides.append(np.asarray(pair[1], dtype=np.float64))
        except (TypeError, ValueError):
            raise InvalidValue(name, "labels", "numbers, as the model predicts them") from None
    records, values = np.concatenate([members[0], nonmembers[0]]), np.concatenate(sides)
    used = np.arange(len(values)) < len(sides[0])
    whole = np.column_stack([records.reshape(len(records), -1), values])
    digests = record_digests(whole, np.zeros(len(values), dtype=np.int64))
    kept = check_overlap(digests, used, _validate.one_of("overlap", overlap, OVERLAPS))
    records, values, used = records[kept], values[kept], used[kept]
    others: dict[str, Any] = {}
    if train is not None:
        halves = paired_halves(len(values), shadows, seed=seed)
        first, seeded = fresh_seed() if seed is None else seed, SeededTraining(train, data=2)
        others["shadow_members"] = halves
        others["shadow_predictions"] = [
            np.ravel(
                seeded(records[half], values[half], seed=derive_seed(first, at)).predict(records)
            )
            for at, half in enumerate(halves)
        ]
    return regression_membership(np.ravel(model.predict(records)), values, used, **others)


def membership_inputs(
    target: Target,
    *,
    members: tuple[Any, Any],
    nonmembers: tuple[Any, Any],
    public: tuple[Any, Any] | None = None,
    answers_only: bool = False,
    overlap: str = "refuse",
    observed: bool = True,
) -> dict[str, Any]:
    """Return what membership attacks need, by the names of ``INPUTS``; the target is asked once.

    Parameters
    ----------
    target, members, nonmembers, public, answers_only, overlap
        As for :func:`membership_attacks`.
    observed
        Whether to ask the target at all; some attacks do so by themselves.

    Returns
    -------
    dict
        ``target``, ``records``, ``labels`` and ``members``, and if observed ``observation`` and
        ``public``; for :func:`~discreet.attacks.run_attack`.

    Raises
    ------
    InvalidValue
        If records are on both sides, or do not fit the target.
    """
    inputs: dict[str, Any] = {
        "target": target,
        "records": np.concatenate([members[0], nonmembers[0]]),
        "labels": np.concatenate([members[1], nonmembers[1]]),
        "members": np.arange(len(members[1]) + len(nonmembers[1])) < len(members[1]),
    }
    if not observed:
        return inputs
    seen = observe_split(
        target,
        members=members,
        nonmembers=nonmembers,
        overlap="allow" if answers_only else overlap,
    )
    known: Observation | None = None
    if public is not None:
        known = observe(target, *public, members=[False] * len(public[1]))
    if answers_only:
        known = known and known.as_different_records(first=len(seen))
        seen = seen.as_different_records()
    return {**inputs, "observation": seen, "public": known}


def read_as(model: Any, output: str | None) -> Any:
    """Return a model whose output is of this kind; estimators and targets say it themselves.

    Parameters
    ----------
    model
        A model.
    output
        What it gives, or None.

    Returns
    -------
    model or Target
        One that says what it gives.
    """
    if output is None or not hasattr(model, "state_dict"):
        return model
    return as_target(model, output=output)


class _ReadAs:
    """Trains models whose output is of one kind."""

    def __init__(self, train: Callable[..., Any], output: str | None) -> None:
        self._train = train
        self._output = output

    def __call__(self, indices: Any, seed: int) -> Any:
        return read_as(self._train(indices, seed), self._output)


def _cache_key(train: Callable[..., Any]) -> str:
    """Name a training function; a pool trains one kept model again, so changes are noticed."""
    given = getattr(train, "cache_key", None)
    if isinstance(given, str) and given:
        return given
    return f"{train.__module__}.{getattr(train, '__qualname__', type(train).__qualname__)}"


class RetrainedTwin:
    """Trains another model as the learner with a schema was trained, on encoded records.

    Every parameter is that of the learner, chosen or by default; only randomness follows the seed,
    because a shadow model protects nobody.
    """

    def __init__(self, learner: Any) -> None:
        self._estimator = learner.for_encoded_rows()
        self._classes = self._estimator.classes_
        parameters = self._estimator.get_params(deep=False)
        chosen = {name: value for name, value in parameters.items() if name != "insecure_seed"}
        name = type(learner).__name__
        text = json.dumps(chosen, sort_keys=True, default=str)
        self.cache_key = f"{__version__} {name} {learner.schema.content_hash} {text}"

    def __call__(self, records: Any, labels: Any, seed: int) -> Any:
        from sklearn.base import clone  # type: ignore[import-untyped]

        made = clone(self._estimator).set_params(insecure_seed=seed)
        made.fit(records, self._classes[np.asarray(labels)])
        classes = len(self._classes)
        return as_target(made.predict_proba, output="probabilities", classes=classes)


# --- which attack to quote ---------------------------------------------------------------------

Attack = Callable[["AlignedScores"], "NDArray[np.float64]"]
_SIGNALS = {"yeom": "loss", "lira": "scaled_logit", "rmia": "confidence"}
# Where there are too few models to try anything: what is known to need the fewest of them first.
_WITHOUT_TRIALS = ("rmia", "lira", "yeom")


def strongest_of_three(observation: Observation, pool: ShadowPool) -> tuple[MembershipResult, ...]:
    """Train the pool and attack by :func:`yeom`, :func:`lira` and :func:`rmia`.

    One of the results is marked as the strongest, see :func:`mark_strongest`. LiRA is left out if
    the pool has too few models for it; a pool with too few for RMIA is refused before training.

    Parameters
    ----------
    observation
        What the target answers.
    pool
        Shadow models to train.

    Returns
    -------
    tuple of MembershipResult
        Of two or three attacks; one is marked.

    Raises
    ------
    InvalidValue
        If the pool has too few models.
    """
    check_rmia_models(pool.inclusion)
    try:
        check_lira_models(pool.inclusion)
        with_lira = True
    except InvalidValue:
        with_lira = False
    scores = pool.run()
    results = [yeom(observation)]
    if with_lira:
        results.append(lira(observation, scores))
    results.append(rmia(observation, scores))
    return mark_strongest(results, observation, scores)


def mark_strongest(
    results: Sequence[MembershipResult], observation: Observation, shadows: ShadowScores
) -> tuple[MembershipResult, ...]:
    """Return the results; the metadata of one say that it is ``strongest_on`` shadow models.

    Results of :func:`yeom`, :func:`lira` and :func:`rmia` on this observation are compared, with
    their settings, by the members that they find at 1 % of false positives where shadow models
    take the place of the target. Others are left as they are.

    Parameters
    ----------
    results
        Of attacks on one target.
    observation
        What they read.
    shadows
        The shadow models to try them on.

    Returns
    -------
    tuple of MembershipResult
        The same; one is marked.

    Raises
    ------
    InvalidValue
        If none of them can be tried.
    """
    known = [at for at, one in enumerate(results) if one.attack.split()[0] in _SIGNALS]
    if not known:
        raise InvalidValue("results", len(results), "one of yeom, lira or rmia at least")
    found: dict[int, float] = {}
    for at in known:
        signal = _SIGNALS[results[at].attack.split()[0]]
        both = shadows.align(observation, signal=signal)
        tried = trials(both, fewest=2) or trials(both, fewest=1)
        try:
            found[at] = strength(_attack_of(results[at]), tried) if tried else np.nan
        except InvalidValue:  # too few models for this attack, once one of them is the target
            found[at] = np.nan
    comparable = {at: value for at, value in found.items() if not np.isnan(value)}
    if comparable:
        best = max(comparable, key=lambda at: comparable[at])
        shown = ", ".join(f"{results[at].attack} {value:.3f}" for at, value in comparable.items())
        reason = f"shadow models: members found at {100 * TRIED_FPR:g} % FPR {shown}"
    else:
        rank = {name: place for place, name in enumerate(_WITHOUT_TRIALS)}
        best = min(known, key=lambda at: rank[results[at].attack.split()[0]])
        reason = "nothing: there are too few shadow models to try attacks on"
    marked = list(results)
    marked[best] = replace(
        results[best], metadata={**results[best].metadata, "strongest_on": reason}
    )
    return tuple(marked)


def _attack_of(result: MembershipResult) -> Attack:
    """Return the attack that gave a result, with its settings, as a function of scores."""
    said = result.metadata
    name = result.attack.split()[0]
    if name == "yeom":
        return lambda both: -both.target
    if name == "lira":
        limit = said["limit"]
        return lambda both: lira_scores(both, said["mode"], said["variance"], limit)
    return lambda both: rmia_scores(both, said["mode"], said.get("offline_a", 0.0))
