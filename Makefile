# `make run`, `make test` and `make attack` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.PHONY: run test test-all test-changed lint docs
# Tests start hundreds of Python programs, which keep nothing that they compile where the environment forbids it.
COMPILE = $(VENV)/bin/python -m compileall -q pipeline listeners workloads hydra_plugins tests
PYTEST = $(VENV)/bin/python -m pytest -n 4 --dist worksteal
run: $(VENV)/.installed
	$(VENV)/bin/python run.py $(or $(ARGS),window.seconds=5)

test: $(VENV)/.installed-dev
	$(COMPILE)
	$(PYTEST) $(ARGS)

# The tests of the folders that differ from SINCE, and some of everything else.
SINCE ?= main
test-changed: $(VENV)/.installed-dev
	$(PYTEST) --changed $(SINCE) $(ARGS)

test-all: $(VENV)/.installed-dev
	$(COMPILE)
	$(PYTEST) -m 'not gpu and not exhaustive' $(ARGS)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# The documentation as a site with search: build/site/index.html.
docs: $(VENV)/.installed-docs
	$(VENV)/bin/zensical build --strict --clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml setup.py
	$(VENV)/bin/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml setup.py
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --editable '.[docs]'
	touch $@

# The numbers of the README and of pages against the bundles in docs/results.
.PHONY: claims
claims: $(VENV)/.installed
	$(VENV)/bin/python -m pipeline.report claims

# Random kills, faults and inputs against studies on a simulated machine: an hour, or ATTACK_S seconds.
.PHONY: attack
ATTACK_S ?= 3600
ATTACK_SEED ?= 1
attack: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests.attack --seconds $(ATTACK_S) --seed $(ATTACK_SEED)
