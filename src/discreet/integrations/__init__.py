"""Private training inside the loops of other frameworks.

One module for each, which needs its framework and nothing else of the list:
:mod:`~discreet.integrations.huggingface` for ``transformers.Trainer`` and ``trl.SFTTrainer``,
:mod:`~discreet.integrations.lightning`, :mod:`~discreet.integrations.accelerate`, and
:mod:`~discreet.integrations.peft` for adapters of frozen models. Each of them puts
:func:`discreet.learn.dpsgd.make_private` where the framework reads batches, goes backward and
steps; the accounting and the checks are those of :mod:`discreet.learn.dpsgd`.
"""
