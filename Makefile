# Headrace: `make help` lists what can be made. Each target sets up what it needs.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KERNEL := $(VENV)/.kernel
AZURITE := $(VENV)/azurite/.ready
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES := $(wildcard src/headrace/_native/*.pyx src/headrace/_native/*.pxd)
JAVA_MIN := 17

.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-fast docs check format bench ab crash sim fuzz sanitize hostile soak soak-readers mutants conformance-natspy parts java clean

help: ## what can be made
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(KERNEL) ## a virtual environment in .venv with everything the project needs

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Headrace needs Python 3.11 or later. On Debian: apt-get install python3 python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "The venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }
	@$(PIP) install -c constraints.txt --upgrade 'pip>=25.1'
	@$(PIP) install -c constraints.txt --group dev
	@touch $@

$(KERNEL): $(READY) setup.py $(SOURCES)
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(AZURITE):
	@command -v npm >/dev/null || { echo "npm is missing; the tests of Azure Blob need it (Azurite). On Debian: apt-get install nodejs npm"; exit 1; }
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.37.0
	@touch $@

run: setup ## a broker on 127.0.0.1:4222, data in ./data (ARGS='-p 4333' adds flags)
	$(BIN)/headrace serve -js -sd data $(ARGS)

demo: setup ## the whole story in one go; the broker stays up to try things (ARGS=--exit ends it)
	$(BIN)/python -m headrace.demo $(ARGS)

# Unit tests alone need neither Java nor npm.
PATHS := $(filter tests/%,$(ARGS))
PARTS_NEEDED := $(if $(PATHS),$(if $(filter-out tests/unit%,$(PATHS)),java $(AZURITE)),java $(AZURITE))

test: setup $(PARTS_NEEDED) ## all tests that belong to a change (ARGS='tests/unit/broker -k name' selects)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ARGS)

test-fast: setup ## the unit tests: about a minute, without Java, npm or a browser (ARGS='-k name' selects)
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/unit $(ARGS)

docs: setup ## the documentation as a site in out/site
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "open out/site/index.html"

check: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## let ruff put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## side by side with nats-server, as ratios
	$(BIN)/python bench/perf.py $(ARGS)

ab: setup ## two versions of the server against each other: OLD and NEW are checkouts or git revisions (ARGS='--only pub128')
	$(BIN)/python bench/ab.py $(or $(OLD),HEAD) $(or $(NEW),.) $(ARGS)

crash: setup ## two million crash points and every byte of a store rotten: hours (ARGS='--points 50000' for fewer)
	$(BIN)/python -m tests.crash.enumerate_crash_points --jobs 2 $(ARGS)
	$(BIN)/python -m tests.crash.enumerate_bit_rot --jobs 2

sim: setup ## whole simulated brokers by seed, and every probe hit (SEEDS=20000); worlds of claims (CLAIM_SEEDS=1000)
	$(BIN)/python -m tests.sim.run_simulations 0 $(or $(SEEDS),20000) --jobs 2
	$(BIN)/python -m tests.sim.run_claim_simulations 0 $(or $(CLAIM_SEEDS),1000) --jobs 2

fuzz: setup ## malformed input of every kind, by seed, from where out/fuzz.json ends (INPUTS=50000000, MINUTES=30 ends earlier)
	$(BIN)/python bench/fuzz.py --inputs $(or $(INPUTS),50000000) --minutes $(or $(MINUTES),0)

sanitize: setup ## the kernel under AddressSanitizer and UBSan: its unit tests, then malformed input (MINUTES=10); built below out/
	$(BIN)/python bench/sanitize.py --minutes $(or $(MINUTES),10) $(ARGS)

hostile: setup ## attacks in full size on a real server, and how long others wait meanwhile (ARGS='--only slow --scale 0.2')
	$(BIN)/python bench/hostile.py $(ARGS)

soak: setup ## half of the peak with everything at once: memory and descriptors stay flat, nothing is lost (MINUTES=120)
	$(BIN)/python bench/soak.py --minutes $(or $(MINUTES),120)

soak-readers: setup ## another process reads through pins for a minute while the store is written at full speed
	$(BIN)/python -m tests.crash.snapshot_load $(ARGS)

mutants: setup ## bugs planted in store, broker and claims, one by one; each must be caught
	PYTHONPATH=tests $(BIN)/python -m tests.crash.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.claims.mutants

conformance-natspy: setup ## nats-py's own test suite against this broker (ARGS='--suite PATH': a checkout of nats.py)
	$(BIN)/python bench/natspy.py $(ARGS)

# Debian packages that tests use: "package:command". Installed where that is allowed; without them their tests are skipped or fail, and say so.
PARTS := openjdk-17-jre-headless:java nodejs:node npm:npm chromium:chromium prometheus:promtool

parts:
	@missing=; for part in $(PARTS); do command -v "$${part#*:}" >/dev/null || missing="$$missing $${part%:*}"; done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		mkdir -p out; echo "installing Debian packages:$$missing"; \
		(apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing) >out/parts.log 2>&1 \
		|| { tail -5 out/parts.log; echo "could not install$$missing; the tests that need them are skipped or fail"; }; \
	else \
		echo "missing:$$missing; the tests that need them are skipped or fail. On Debian: apt-get install$$missing"; \
	fi

java: parts
	@version=$$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p'); \
	if [ -z "$$version" ] || [ "$$version" -lt $(JAVA_MIN) ]; then \
		echo "Java $(JAVA_MIN) or later is missing; the Spark tests need it. On Debian: apt-get install openjdk-17-jre-headless"; exit 1; \
	fi

clean: ## remove what was built
	rm -rf $(VENV) build dist out src/headrace/_native/*.so src/headrace/_native/*.c
