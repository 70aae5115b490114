# `make run` and `make test` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.PHONY: run test lint
run: $(VENV)/.installed
	$(VENV)/bin/python run.py $(ARGS)

test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@
