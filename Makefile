# Everything here runs in .venv, which the first target that needs it sets up by itself.
# Paths are relative on purpose: the folder's own path may hold spaces.

PY := .venv/bin/python
STAMP := .venv/.installed
LAST ?= 10
# The suite is spread over the cores; each worker gets its own throw-away databases.
PYTEST_ARGS ?= -n auto

.DEFAULT_GOAL := help
.PHONY: help setup demo test check lint types imports pages format bench docs clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

$(STAMP): pyproject.toml scripts/venv
	@scripts/venv
	@touch $@

setup: $(STAMP)  ## Set up .venv (the other targets do it by themselves)
	@:

demo: $(STAMP)  ## Review this repository's last commits, dismiss a finding, review again, gate a prompt
	@LAST=$(LAST) scripts/demo

test: $(STAMP)  ## Run the tests
	@$(PY) -m pytest $(PYTEST_ARGS)

check: lint types imports pages  ## Lint, formatting, types, import rules, generated pages (make lint|types|imports|pages)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)
	$(PY) -m mypy
	$(PY) -m mypy examples scripts/docs.py

imports: $(STAMP)
	.venv/bin/lint-imports

pages: $(STAMP)
	$(PY) scripts/docs.py --check

format: $(STAMP)  ## Let ruff format and fix what it can
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

bench: $(STAMP)  ## Measure against the targets, as ratios within one run
	@$(PY) -m benchmarks

docs: $(STAMP)  ## Write the generated pages of docs/ again
	@$(PY) scripts/docs.py

clean:  ## Remove .venv and what the tools left behind
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist build
