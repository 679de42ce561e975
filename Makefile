# `make help` lists the targets. Every target sets up what it needs; a second call is instant.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header
FOLDERS := streams windows joins cdc sinks state batch ops testing

# Stamps: what a virtual environment holds, renewed when the file it was made from changes.
RUN := .venv/.run
DEV := .venv/.dev

.PHONY: help setup demo test test-slow crash-matrix lint format bench jars requirements clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV) ## install everything for development; leaves .venv/bin/flow

demo: $(RUN) ## run a declared pipeline over generated order events and show the result
	@$(BIN)/python -m examples.orders.demo

test: $(DEV) ## run the tests (all but the slow ones)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

test-slow: $(DEV) ## run the slow tests
	$(BIN)/python -m pytest -m slow

lint: $(DEV) ## ruff, mypy --strict, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Neither tool sees the folder mapping of a development install; links show them the package as users import it.
	@rm -rf build/lint && mkdir -p build/lint/ematix_flow
	@ln -s $(CURDIR)/ematix_flow/* $(addprefix $(CURDIR)/,$(FOLDERS)) build/lint/ematix_flow/
	MYPYPATH=build/lint $(BIN)/mypy -p ematix_flow | sed -e 's#^build/lint/ematix_flow/\($(subst $() ,\|,$(FOLDERS))\)/#\1/#' -e 's#^build/lint/##'
	cd build/lint && $(CURDIR)/$(BIN)/lint-imports --no-cache --no-logo --config $(CURDIR)/pyproject.toml

format: $(DEV) ## rewrite the code the way lint wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crash-matrix: $(DEV) ## kill the process at every step with every store and target (about half an hour), and write down what came of it
	$(BIN)/python -m pytest tests/crash/test_kill_at_each_step.py -m slow -n 2 --dist worksteal --junitxml=build/crash.xml
	$(BIN)/python -m tests.crash.matrix build/crash.xml

bench: $(DEV) ## measure throughput against plain PySpark
	$(BIN)/python -m bench

jars: $(RUN) ## fetch all Java libraries now instead of at first use
	$(BIN)/python -m ematix_flow.streams.jars

requirements: $(DEV) ## resolve requirements/*.txt again from pyproject.toml
	$(LOCK) --upgrade requirements/build.in -o requirements/build.txt
	$(LOCK) --upgrade --all-extras pyproject.toml -c requirements/build.txt -o requirements/dev.txt
	$(LOCK) --upgrade pyproject.toml -c requirements/dev.txt -o requirements/run.txt

clean: ## remove the environment and everything that was built
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# The checks come before anything is downloaded. Builds use the pinned setuptools, not whatever is newest that day.
$(RUN): requirements/build.txt requirements/run.txt pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or later is needed, found: $$($(PYTHON) --version 2>&1 || true). Install it, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@major=$$($(JAVA) -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true); [ "$${major:-0}" -ge 17 ] || { \
	  echo "Java 17 or later is needed, $(JAVA) is $${major:-not there}. Install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME." >&2; exit 1; }
	@echo "Installing Spark and the other Python libraries into .venv (about 450 MB, one to two minutes) ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) install --require-hashes -r requirements/build.txt
	@$(PIP) install --require-hashes --no-build-isolation -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(DEV): $(RUN) requirements/dev.txt
	@echo "Installing the development tools and the drivers ..."
	@$(PIP) install --require-hashes --no-build-isolation -r requirements/dev.txt
	@touch $@
