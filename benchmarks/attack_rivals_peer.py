"""Scores of LeakPro and ML Privacy Meter, in an environment of their own.

python attack_rivals_peer.py IN.npz OUT.npz LEAKPRO PRIVACY_METER, where the last two are checkouts.
IN has the log-probabilities of models about records, their labels, and who was trained on what;
models 2k and 2k + 1 have complementary halves. OUT has the scores of the first TARGETS models.

LeakPro's attacks are run by their own `run_attack`, on logits that are handed to them: its handlers
of data and models, which train shadow models, are left out. ML Privacy Meter's `run_rmia` and
`tune_offline_a` are called as its `audit.py` calls them, with the records as the population.
"""

import logging
import sys

import numpy as np


def leakpro(logits, labels, used, target, checkout):
    sys.path.insert(0, checkout)
    from leakpro.attacks.mia_attacks.lira import AttackLiRA
    from leakpro.attacks.mia_attacks.rmia import AttackRMIA

    others = [row for row in range(len(logits)) if row // 2 != target // 2]
    audit = {"in_members": np.arange(len(labels)), "out_members": np.arange(1)}
    found = {}
    for online in (True, False):
        attack = AttackLiRA.__new__(AttackLiRA)
        attack.configs = attack.AttackConfig(num_shadow_models=len(others), online=online)
        for name, value in attack.configs.model_dump().items():
            setattr(attack, name, value)
        attack.fix_var_threshold = 32
        attack.target_logits = attack.rescale_logits(logits[target], labels)
        attack.shadow_models_logits = np.array(
            [attack.rescale_logits(logits[row], labels) for row in others]
        )
        attack.out_indices = ~used[others]
        Holder = type("Held", (AttackLiRA,), {"audit_dataset": audit})
        attack.__class__ = Holder
        attack.run_attack()
        found[f"LeakPro LiRA {'online' if online else 'offline'}"] = attack.in_member_signals[:, 0]
    attack = AttackRMIA.__new__(AttackRMIA)
    attack.configs = attack.AttackConfig(num_shadow_models=len(others), online=False)
    for name, value in attack.configs.model_dump().items():
        setattr(attack, name, value)
    attack.__class__ = type("Held", (AttackRMIA,), {"audit_dataset": audit})
    attack.epsilon = 1e-6
    attack.ground_truth_indices = labels
    attack.logits_theta, attack.logits_shadow_models = logits[target], logits[others]
    attack.out_indices = ~used[others]
    # The ratios of the population, here the records themselves, as prepare_attack has them.
    places = np.arange(len(labels))
    probability = np.exp(logits)[:, places, labels]
    prior = 0.5 * (
        (attack.offline_a + 1) * probability[others].mean(axis=0) + (1 - attack.offline_a)
    )
    attack.ratio_z = np.atleast_2d(probability[target] / (prior + attack.epsilon))
    attack._run_attack()
    found["LeakPro RMIA"] = attack.in_member_signals[:, 0]
    return found


def privacy_meter(logits, labels, used, target, checkout):
    sys.path.insert(0, checkout)
    import attacks

    signals = np.exp(logits)[:, np.arange(len(labels)), labels].T
    members = used.T
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)
    best, *_ = attacks.tune_offline_a(target, signals, signals, members, quiet)
    references = (len(logits) - 2) // 2
    found = attacks.run_rmia(target, signals, signals, members, references, best)
    return {"ML Privacy Meter RMIA": found}


def main():
    given = np.load(sys.argv[1])
    logits, labels, used = (given[name] for name in ("logits", "labels", "used"))
    rows = {}
    for target in range(int(given["targets"])):
        for name, scores in (
            *leakpro(logits, labels, used, target, sys.argv[3]).items(),
            *privacy_meter(logits, labels, used, target, sys.argv[4]).items(),
        ):
            rows.setdefault(name, []).append(scores)
    np.savez(sys.argv[2], **{name: np.array(scores) for name, scores in rows.items()})


if __name__ == "__main__":
    main()
