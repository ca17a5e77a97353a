# Needs python3 (3.11 or later) and make; everything else goes into .venv.

PYTHON  ?= python3
WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
           --constraint constraints.txt

# Pictures are drawn without a display, and nothing is written to the home directory.
export MPLBACKEND := Agg
export MPLCONFIGDIR := $(CURDIR)/$(VENV)/matplotlib

stage = @printf '\n==> %s\n' "$(1)"

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow walks duplicates judge-calculus judge-certificates lint bench bench-accounting bench-curator \
        bench-learners bench-noise bench-schema bench-training stress-curator \
        reproduce-attacks reproduce-audit reproduce-mutants reproduce-theory \
        reproduce-detection reproduce-dpsgd reproduce-pate stress-ledger docs clean distclean

help:
	@echo "make demo               claim, attack, audit, certificate: digits, in discreet-demo/"
	@echo "make test               lint, types, layers, tests, doctests, examples in the docs"
	@echo "make test-slow          slow judges, and tests that need PostgreSQL, Java or a browser"
	@echo "make judge-calculus     thousands of random plans against brute force and mpmath"
	@echo "make judge-certificates every leaf of the certificates of every learner is flipped"
	@echo "                        (LEAVES=0.1: a random tenth of them)"
	@echo "make walks              how many files a user's call walks through"
	@echo "make duplicates         lines that stand twice in src"
	@echo "make lint               the static part of make test"
	@echo "make bench              all benchmarks, beside the peers"
	@echo "make bench-accounting   tightness and speed of the accountants"
	@echo "make bench-noise        speed of the exact samplers"
	@echo "make bench-learners     learners for tables beside scikit-learn and diffprivlib"
	@echo "make bench-curator      the curator's queries beside plain ones, and its service"
	@echo "make bench-schema       how often learned bounds of columns are absurd"
	@echo "make bench-training     a DP-SGD step beside a plain one and Opacus"
	@echo "make reproduce-attacks  what attacks find, beside papers, ART and certificates"
	@echo "make reproduce-dpsgd    accuracy of DP-SGD on MNIST and Fashion-MNIST"
	@echo "make reproduce-pate     PATE on MNIST and Adult"
	@echo "make reproduce-audit    what audits of training certify, on MNIST too"
	@echo "make reproduce-mutants  broken learners against the audits of training"
	@echo "make reproduce-theory   accuracy, attack and audit over epsilon, by accountant"
	@echo "make reproduce-detection  broken mechanisms against the auditor"
	@echo "make stress-curator     kills of the service, and attacks on its answers"
	@echo "make stress-ledger      races, kills and growth of the ledger"
	@echo "make docs               the documentation in site/"
	@echo "make clean, distclean   remove what was generated, and the environment"

# One environment, one stamp for each set of packages that was installed into it.
$(VENV)/pyvenv.cfg:
	$(call stage,environment in $(VENV))
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed-%: pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(call stage,install: $*)
	$(PIP) --editable '.$(if $(filter-out core,$*),[$*])'
	@touch $@

# A directory that an earlier run left is removed: discreet demo writes into a new one only.
demo: $(VENV)/installed-demo
	$(call stage,discreet demo)
	@rm -rf discreet-demo
	$(BIN)/discreet demo --out discreet-demo

lint: $(VENV)/installed-test
	$(call stage,ruff check)
	$(BIN)/ruff check .
	$(call stage,ruff format --check)
	$(BIN)/ruff format --check .
	$(call stage,codespell)
	$(BIN)/codespell
	$(call stage,mypy)
	$(BIN)/mypy
	$(call stage,lint-imports)
	$(BIN)/lint-imports

# Eight lines that stand twice are written once. Becomes a part of lint when it is clean.
duplicates: $(VENV)/installed-test
	$(call stage,pylint: duplicates)
	$(BIN)/pylint src/discreet

# Which files a call walks through; misses are printed and fail.
walks: $(VENV)/installed-test
	$(call stage,benchmarks/walks.py)
	$(BIN)/python benchmarks/walks.py

# There is a process for each core already: threads of linear algebra would only be in its way.
test test-slow judge-calculus judge-certificates: export OMP_NUM_THREADS := 1
test: lint
	$(call stage,pytest)
	$(BIN)/pytest -n $(WORKERS) -m 'not slow and not judge' --durations=25

# Needs PostgreSQL, Java 17 and Chromium: a missing program fails, it does not skip.
test-slow: $(VENV)/installed-test
	$(call stage,pytest -m slow)
	$(BIN)/pytest -n $(WORKERS) -m slow --durations=25

# Every order of every release by brute force, groups and samples by mpmath.
judge-calculus: $(VENV)/installed-test
	$(call stage,pytest tests/privacy/test_judge_calculus.py)
	$(BIN)/pytest -n $(WORKERS) tests/privacy/test_judge_calculus.py

# LEAVES=0.1 flips a random tenth of the leaves.
judge-certificates: $(VENV)/installed-test
	$(call stage,pytest tests/report/test_every_leaf.py)
	$(BIN)/pytest -n $(WORKERS) tests/report/test_every_leaf.py

bench: bench-accounting bench-curator bench-learners bench-noise bench-schema bench-training

# What the auditor finds in the zoo of broken mechanisms; writes the table into the docs.
reproduce-detection: $(VENV)/installed-test
	$(call stage,benchmarks/detection_table.py)
	$(BIN)/python benchmarks/detection_table.py

# A planted mechanism, and canaries in DP-SGD on MNIST; writes the tables into the docs.
reproduce-audit: $(VENV)/installed-test
	$(call stage,benchmarks/audit_training.py)
	$(BIN)/python benchmarks/audit_training.py
	$(BIN)/python benchmarks/audit_table.py

reproduce-mutants: $(VENV)/installed-test
	$(call stage,benchmarks/learner_mutants.py)
	$(BIN)/python benchmarks/learner_mutants.py

# Reads Adult and Location-30; PURCHASE=file adds Purchase-100.
reproduce-theory: $(VENV)/installed-test
	$(call stage,benchmarks/theory_practice.py)
	$(BIN)/python benchmarks/theory_practice.py $(if $(PURCHASE),--purchase $(PURCHASE))
	$(call stage,benchmarks/theory_shokri.py)
	$(BIN)/python benchmarks/theory_shokri.py

stress-ledger: $(VENV)/installed-test
	$(call stage,benchmarks/stress_ledger.py)
	$(BIN)/python benchmarks/stress_ledger.py

# The engine on ten million rows, then the service under eight clients.
bench-curator: $(VENV)/installed-test
	$(call stage,benchmarks/curator_engine.py)
	$(BIN)/python benchmarks/curator_engine.py
	$(call stage,benchmarks/curator_service.py)
	$(BIN)/python benchmarks/curator_service.py

# A hundred kills of the server under load, and attacks until the budget stops them.
stress-curator: $(VENV)/installed-test
	$(call stage,benchmarks/curator_killing.py)
	$(BIN)/python benchmarks/curator_killing.py
	$(call stage,benchmarks/curator_attacks.py)
	$(BIN)/python benchmarks/curator_attacks.py

bench-accounting: $(VENV)/installed-judges
	$(call stage,benchmarks/accounting.py)
	$(BIN)/python benchmarks/accounting.py

bench-noise: $(VENV)/installed-judges
	$(call stage,benchmarks/noise.py)
	$(BIN)/python benchmarks/noise.py

# diffprivlib needs an older scikit-learn: the script makes an environment of its own for it.
bench-learners: $(VENV)/installed-judges
	$(call stage,benchmarks/learners.py)
	$(BIN)/python benchmarks/learners.py

bench-schema: $(VENV)/installed-test
	$(call stage,benchmarks/schema_bounds.py)
	$(BIN)/python benchmarks/schema_bounds.py

bench-training: $(VENV)/installed-judges
	$(call stage,benchmarks/training.py)
	$(BIN)/python benchmarks/training.py

# Reads MNIST and Fashion-MNIST from $$DISCREET_DATA or ../shared/data, or downloads them.
reproduce-dpsgd: $(VENV)/installed-test
	$(call stage,benchmarks/reproduce_dpsgd.py)
	$(BIN)/python benchmarks/reproduce_dpsgd.py

# ART gets an environment of its own, which the script makes; PARTS="lira art" runs these only.
reproduce-attacks: $(VENV)/installed-test
	$(call stage,benchmarks/reproduce_attacks.py)
	$(BIN)/python benchmarks/reproduce_attacks.py $(if $(PARTS),--only $(PARTS))

# Reads MNIST and Adult from the same places.
reproduce-pate: $(VENV)/installed-test
	$(call stage,benchmarks/reproduce_pate.py)
	$(BIN)/python benchmarks/reproduce_pate.py
	$(call stage,benchmarks/pate_labels.py)
	$(BIN)/python benchmarks/pate_labels.py

docs: $(VENV)/installed-docs
	$(call stage,mkdocs build --strict)
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf build dist site demo-output discreet-demo .pytest_cache .mypy_cache .ruff_cache \
	    .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-diffprivlib .venv-art
