# Headrace: `make help` lists the targets. Each target installs what it needs.
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
SCHEMAS := $(VENV)/schemas

.DEFAULT_GOAL := help
.PHONY: help setup run demo demo-java test test-fast test-pythons test-lowest test-deploy docs check format bench ab crash sim fuzz sanitize hostile stalls soak soak-readers spark-kills test-sparks mutants conformance-natspy conformance-faststream conformance-examples parts java clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 22

setup: $(KERNEL) ## create a virtual environment in .venv with all dependencies

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
	@command -v npm >/dev/null || { echo "npm is missing; the Azure Blob tests need it for Azurite. On Debian: apt-get install nodejs npm"; exit 1; }
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.37.0
	@touch $@

run: setup ## run the server on 127.0.0.1:4222 with data in ./data (more flags: ARGS='-p 4333')
	$(BIN)/headrace serve -js -sd data $(ARGS)

demo: setup demo-java ## demonstrate all features, then keep the server running (ARGS=--exit: stop it)
	$(BIN)/python -m headrace.demo $(ARGS)

# The demo's last steps use Spark, which needs Java; without it the demo skips them.
demo-java:
	@command -v java >/dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		mkdir -p out; echo "installing Java for Spark (Debian package default-jre-headless)"; \
		(apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jre-headless) >out/java.log 2>&1 \
		|| { tail -3 out/java.log; echo "could not install Java; the demo skips Spark"; }; \
	else \
		echo "Java $(JAVA_MIN) or later is missing; the demo skips Spark. On Debian: sudo apt-get install default-jre-headless"; \
	fi

# Unit tests need neither Java nor npm.
PATHS := $(filter tests/%,$(ARGS))
PARTS_NEEDED := $(if $(PATHS),$(if $(filter-out tests/unit%,$(PATHS)),java $(AZURITE)),java $(AZURITE))

test: setup $(PARTS_NEEDED) ## run the tests required for a change (select: ARGS='tests/unit/broker -k name')
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ARGS)

test-fast: setup ## run the unit tests: about a minute, without Java, npm or a browser (select: ARGS='-k name')
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/unit $(ARGS)

test-pythons: setup ## build a wheel for each Python 3.11 to 3.14, install it without a compiler, run unit and conformance tests on it (ARGS='--only 3.14')
	PYTHONPATH=tests $(BIN)/python -m install.run_pythons $(ARGS)

test-lowest: setup ## run unit and conformance tests with the lowest versions of all dependencies that the metadata allow
	PYTHONPATH=tests $(BIN)/python -m install.run_pythons --lowest $(ARGS)

test-deploy: setup ## check the Kubernetes manifests and the GitHub workflows against their JSON schemas
	@test -x $(SCHEMAS)/bin/check-jsonschema || { $(BIN)/python -m venv $(SCHEMAS) && $(SCHEMAS)/bin/python -m pip install --quiet 'pip>=25.1' && $(SCHEMAS)/bin/python -m pip install --quiet --group schemas; }
	$(SCHEMAS)/bin/kubernetes-validate --strict deploy/kubernetes/configmap.yaml deploy/kubernetes/networkpolicy.yaml deploy/kubernetes/service.yaml deploy/kubernetes/statefulset.yaml
	$(SCHEMAS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

test-sparks: setup java ## run the Spark tests with PySpark 4.0 to 4.3, an hour (select: ARGS='--versions 4.0 tests/spark/test_kv.py')
	$(BIN)/python bench/spark_versions.py $(ARGS)

docs: setup ## build the documentation in out/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open out/site/index.html; its search needs a server: $(BIN)/python -m http.server -b 127.0.0.1 -d out/site"

check: setup ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## format the code and apply ruff's fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## compare performance with nats-server, as ratios
	$(BIN)/python bench/perf.py $(ARGS)

ab: setup ## compare performance of two versions: OLD and NEW are checkouts or git revisions (ARGS='--only pub128')
	$(BIN)/python bench/ab.py $(or $(OLD),HEAD) $(or $(NEW),.) $(ARGS)

crash: setup ## test two million crash points, and corruption of every byte of a store: hours (fewer: ARGS='--points 50000')
	$(BIN)/python -m tests.crash.enumerate_crash_points --jobs 2 $(ARGS)
	$(BIN)/python -m tests.crash.enumerate_bit_rot --jobs 2

sim: setup ## run simulations by seed, servers (SEEDS=20000) and claims (CLAIM_SEEDS=1000); check that every code probe was hit
	$(BIN)/python -m tests.sim.run_simulations 0 $(or $(SEEDS),20000) --jobs 2
	$(BIN)/python -m tests.sim.run_claim_simulations 0 $(or $(CLAIM_SEEDS),1000) --jobs 2

fuzz: setup ## fuzz with malformed input by seed, continuing from out/fuzz.json (INPUTS=50000000; time limit: MINUTES=30)
	$(BIN)/python bench/fuzz.py --inputs $(or $(INPUTS),50000000) --minutes $(or $(MINUTES),0)

sanitize: setup ## run the compiled core under AddressSanitizer and UBSan: unit tests, then malformed input (MINUTES=10)
	$(BIN)/python bench/sanitize.py --minutes $(or $(MINUTES),10) $(ARGS)

stalls: setup ## how long other clients wait during expensive operations, compared with nats-server; ARGS="--only NAME"
	cd bench && ../$(BIN)/python stalls.py $(ARGS)

hostile: setup ## attack a real server, and measure the latency of other clients meanwhile (ARGS='--only slow --scale 0.2')
	$(BIN)/python bench/hostile.py $(ARGS)

soak: setup ## run a mixed load at half of the peak; check for leaks and lost messages (MINUTES=120)
	$(BIN)/python bench/soak.py --minutes $(or $(MINUTES),120)

soak-readers: setup ## read pinned snapshots from another process for a minute while the store is written at full speed
	$(BIN)/python -m tests.crash.snapshot_load $(ARGS)

spark-kills: setup java ## kill executors, drivers, Python workers and servers under Spark queries; each row must be written once: an hour (ROUNDS=200; select: ARGS='--only join,staged,driver')
	$(BIN)/python bench/spark_kills.py --rounds $(or $(ROUNDS),200) $(ARGS)

mutants: setup ## plant bugs in store, broker, claims and settings, one at a time; each must make a test fail
	PYTHONPATH=tests $(BIN)/python -m tests.crash.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.claims.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.unit.mutants

conformance-natspy: setup ## run the test suites of nats.py and orbit.py against Headrace (ARGS='--suite PATH --orbit PATH --python PYTHON': checkouts, and a Python with their test packages)
	$(BIN)/python bench/natspy.py $(ARGS)

conformance-faststream: setup ## run FastStream's tests for NATS against Headrace (ARGS='--suite PATH --python PYTHON': a checkout, and a Python with its test packages)
	$(BIN)/python bench/faststream.py $(ARGS)

conformance-examples: setup ## run the published examples of FastStream and taskiq-nats against Headrace (ARGS as above; the Python has faststream[nats,cli] and taskiq-nats)
	$(BIN)/python bench/examples.py $(ARGS)

# Debian packages that tests use: "package:command". Installed as root only; without them the tests that need them are skipped or fail.
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

clean: ## remove the virtual environment and build output
	rm -rf $(VENV) build dist out src/headrace/_native/*.so src/headrace/_native/*.c
