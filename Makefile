# Headrace: `make help` lists what can be made. Each target sets up what it needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KERNEL := $(VENV)/.kernel
SOURCES := $(wildcard src/headrace/kernel/*.pyx src/headrace/kernel/*.pxd)

.DEFAULT_GOAL := help
.PHONY: help setup run demo test check bench clean

help: ## what can be made
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(KERNEL) ## a virtual environment in .venv with everything the project needs

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Headrace needs Python 3.11 or later: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' -c constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev
	@touch $@

$(KERNEL): $(READY) setup.py $(SOURCES)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e .
	@touch $@

run: setup ## a broker on 127.0.0.1:4222, data in ./data
	$(BIN)/headrace serve -js -sd data

demo: setup ## the whole story in one go
	$(BIN)/python -m headrace.demo

test: setup java ## all tests that belong to a change (about ten minutes)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup

check: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## side by side with nats-server, as ratios
	$(BIN)/python bench/perf.py

.PHONY: java
java:
	@command -v java >/dev/null 2>&1 || { echo "Java 17 is missing; the Spark tests need it. On Debian: apt-get install openjdk-17-jre-headless"; exit 1; }

clean: ## remove what was built
	rm -rf $(VENV) build dist out src/headrace/kernel/*.so src/headrace/kernel/*.c
