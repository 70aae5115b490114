# `make run`, `make test` and `make attack` need Python 3.11 or newer and nothing else.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=

.PHONY: run test test-all test-changed lint docs
# Tests start hundreds of Python programs, which keep nothing that they compile where the environment forbids it.
COMPILE = $(VENV)/bin/python -m compileall -q pipeline listeners workloads hydra_plugins tests
# For two CPUs: tests wait for their processes some of the time, and each worker imports everything.
WORKERS ?= 3
PYTEST = $(VENV)/bin/python -m pytest -n $(WORKERS) --dist worksteal
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

# The documentation as a site with search: build/site/index.html. It has the report and the picture of each bundle
# docs/results/STUDY.tar.xz, made anew; a bundle that cannot be read, or gives other speeds, is an error.
STUDIES = $(patsubst docs/results/%.tar.xz,%,$(wildcard docs/results/*.tar.xz))
PICTURES = $(filter $(STUDIES),$(patsubst docs/results/%.md,%,$(wildcard docs/results/*.md)))
REPORTS = $(STUDIES:%=build/reports/%/index.html)
# The figure of a report that is the picture of its page, if not the gain against the number of jobs.
FIGURE_fractions_h100 = fractions-infer-bert-base
FIGURE_loads_h100 = against-rate-per-s-infer-bert-base
FIGURE_sensitivity_pairs_h100 = sensitivity-resnet50-imagenet64-bs128-cuda-graph-data-on-the-gpu
FIGURE_sensitivity_ten_h200 = mixes-total-time
FIGURE_pack_h200 = over-time
FIGURE_service_beside_h200 = beside-inference
# The study whose report has the picture of a page, if not that with the name of the page.
PICTURED_one_process_h100 = one_process_h100_b
copy_picture = cp build/reports/$(or $(PICTURED_$(1)),$(1))/figures/$(or $(FIGURE_$(1)),gain).svg $(2)/$(1).svg &&
docs: $(VENV)/.installed-docs
	$(MAKE) --jobs=2 $(REPORTS)
	for study in $(STUDIES); do diff docs/results/$$study.csv build/reports/$$study/tables/speed.csv || \
		{ echo "docs/results/$$study.csv differs from the report; run make results" >&2; exit 1; }; done
	$(VENV)/bin/zensical build --strict --clean
	for study in $(STUDIES); do cp -r build/reports/$$study build/site/results || exit 1; done
	for bundle in $(wildcard community/*/*/study.tar.xz); do \
		$(VENV)/bin/python -m pipeline.report --no-log --root $$bundle --out build/site/$$(dirname $$bundle) --experiment \
		$$(tar xJOf $$bundle manifest.json | $(VENV)/bin/python -c 'import json, sys; print(json.load(sys.stdin)["experiment"])') \
		|| exit 1; done
	$(foreach study,$(PICTURES),$(call copy_picture,$(study),build/site/results)) true

build/reports/%/index.html: docs/results/%.tar.xz $(shell find pipeline -type f ! -name '*.pyc') | $(VENV)/.installed-docs
	$(VENV)/bin/python -m pipeline.report --root $< --out $(@D) --experiment \
		$$(tar xJOf $< manifest.json | $(VENV)/bin/python -c 'import json, sys; print(json.load(sys.stdin)["experiment"])')

# The table of speeds of each study, and the picture of those with a page, from their reports.
.PHONY: results
results: $(VENV)/.installed-docs $(REPORTS)
	$(foreach study,$(PICTURES),$(call copy_picture,$(study),docs/results)) true
	for study in $(STUDIES); do cp build/reports/$$study/tables/speed.csv docs/results/$$study.csv || exit 1; done

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

# The entries of the public table are evaluated, and its page is written (docs/community.md).
.PHONY: community
community: $(VENV)/.installed
	$(VENV)/bin/python -m pipeline.report community $(ARGS)

# Random kills, faults and inputs against studies on a simulated machine: an hour, or ATTACK_S seconds.
.PHONY: attack
ATTACK_S ?= 3600
ATTACK_SEED ?= 1
attack: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests.attack --seconds $(ATTACK_S) --seed $(ATTACK_SEED)
