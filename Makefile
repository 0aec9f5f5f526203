# Headrace: `make help` lists the targets. Each target installs what it needs.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
KERNEL := $(VENV)/.kernel
AZURITE := $(VENV)/azurite/.ready
# Repeats a command that failed: a package index may be away for a moment.
TWICE := sh -c '"$$@" || { sleep 5; "$$@"; }' twice
PIP := $(TWICE) $(BIN)/python -m pip --quiet --disable-pip-version-check
SOURCES := $(wildcard src/headrace/_native/*.pyx src/headrace/_native/*.pxd)
JAVA_MIN := 17
SCHEMAS := $(VENV)/schemas
# Without a bytecode cache Python compiles 400 modules at each start of a server, and some while it serves.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run demo demo-java test test-fast test-pythons test-lowest test-deploy test-image test-cluster docs check format bench ab crash sim fuzz sanitize hostile stalls soak soak-readers spark-kills move-kills move-load table-kills table-spark archive-kills archive-bench edge test-sparks mutants conformance-natspy conformance-faststream conformance-examples parts image-parts java clean

help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

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
	@$(TWICE) npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.37.0
	@touch $@

run: setup ## run the server on 127.0.0.1:4222 with data in ./data (more flags: ARGS='-p 4333')
	$(BIN)/headrace serve -js -sd data $(ARGS)

demo: setup demo-java ## show streams, keys, claims and Spark in two to three minutes, then keep the server running (ARGS=--exit: stop it)
	$(BIN)/python -m headrace.demo $(ARGS)

# The demo uses Spark, which needs Java; without it the demo skips that step.
JAVA_VERSION = $$(java -version 2>&1 | sed -nE 's/.* version "([0-9]+).*/\1/p' | head -1)

demo-java:
	@version=$(JAVA_VERSION); [ "$${version:-0}" -ge $(JAVA_MIN) ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		mkdir -p out; echo "installing Java for Spark (Debian package default-jre-headless)"; \
		($(TWICE) apt-get update && $(TWICE) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jre-headless) >out/java.log 2>&1 \
		|| { tail -3 out/java.log; echo "could not install Java; the demo skips Spark"; }; \
	else \
		echo "Java $(JAVA_MIN) or later is missing; the demo skips Spark. On Debian: sudo apt-get install default-jre-headless; on macOS: brew install openjdk@17"; \
	fi

# Unit tests need neither Java nor npm.
PATHS := $(filter tests/%,$(ARGS))
PARTS_NEEDED := $(if $(PATHS),$(if $(filter-out tests/unit%,$(PATHS)),java $(AZURITE)),java $(AZURITE))

CLUSTER_TESTS := $(wildcard tests/conformance/test_client_*.py) tests/conformance/test_cluster_node_kills.py tests/claims

test: setup $(PARTS_NEEDED) ## run the tests required for a change (select: ARGS='tests/unit/broker -k name')
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ARGS)

test-fast: setup ## run the unit tests: about a minute, without Java, npm or a browser (select: ARGS='-k name')
	$(BIN)/python -m pytest -q -n 2 --dist loadgroup tests/unit $(ARGS)

test-pythons: setup ## run unit and conformance tests on a wheel for each Python 3.11 to 3.14 (ARGS='--only 3.14')
	PYTHONPATH=tests $(BIN)/python -m install.run_pythons $(ARGS)

test-lowest: setup ## run unit and conformance tests with the lowest allowed versions of all dependencies
	PYTHONPATH=tests $(BIN)/python -m install.run_pythons --lowest $(ARGS)

test-cluster: setup $(AZURITE) ## run the tests of client and claims on a cluster of three nats-servers (select: ARGS='tests/conformance/test_client_kv.py')
	HEADRACE_TARGET=cluster $(BIN)/python -m pytest -q $(or $(ARGS),$(CLUSTER_TESTS))

test-deploy: setup ## check the Kubernetes manifests and the GitHub workflows against their JSON schemas
	@test -x $(SCHEMAS)/bin/check-jsonschema || { $(BIN)/python -m venv $(SCHEMAS) && $(SCHEMAS)/bin/python -m pip install --quiet 'pip>=25.1' && $(SCHEMAS)/bin/python -m pip install --quiet --group schemas; }
	$(SCHEMAS)/bin/kubernetes-validate --strict deploy/kubernetes/configmap.yaml deploy/kubernetes/networkpolicy.yaml deploy/kubernetes/service.yaml deploy/kubernetes/statefulset.yaml
	$(SCHEMAS)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# Root is needed for debootstrap, chroot and namespaces. The tests run in namespaces of their own: nothing stays mounted or running.
test-image: image-parts setup ## build the container image as deploy/Dockerfile says, and run it: as root, without a container engine (ARGS='-k pod')
	@mkdir -p out
	PYTHONPATH=tests $(BIN)/python -m image.build out/image >out/image.log 2>&1 || { tail -20 out/image.log; exit 1; }
	HEADRACE_IMAGE=out/image unshare --mount --net --pid --fork --kill-child --mount-proc sh -c 'ip link set lo up && exec "$$@"' sh \
		$(BIN)/python -m pytest -q tests/image $(ARGS)

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

sim: setup ## simulate servers (SEEDS=20000), claims (CLAIM_SEEDS=1000), and two brokers with an archive (TWO_BROKER_SEEDS=1000)
	$(BIN)/python -m tests.sim.run_simulations 0 $(or $(SEEDS),20000) --jobs 2
	$(BIN)/python -m tests.sim.run_claim_simulations 0 $(or $(CLAIM_SEEDS),1000) --jobs 2
	$(BIN)/python -m tests.sim.run_two_brokers 0 $(or $(TWO_BROKER_SEEDS),1000) --jobs 2

fuzz: setup ## fuzz with malformed input by seed, continuing from out/fuzz.json (INPUTS=50000000; time limit: MINUTES=30)
	$(BIN)/python bench/fuzz.py --inputs $(or $(INPUTS),50000000) --minutes $(or $(MINUTES),0)

sanitize: setup ## run the compiled core under AddressSanitizer and UBSan: unit tests, then malformed input (MINUTES=10)
	$(BIN)/python bench/sanitize.py --minutes $(or $(MINUTES),10) $(ARGS)

stalls: setup ## measure how long other clients wait during expensive operations, compared with nats-server (ARGS='--only NAME')
	cd bench && ../$(BIN)/python stalls.py $(ARGS)

hostile: setup ## attack a real server, and measure the latency of other clients meanwhile (ARGS='--only slow --scale 0.2')
	$(BIN)/python bench/hostile.py $(ARGS)

soak: setup ## run a mixed load at half of the peak; check for leaks and lost messages (MINUTES=120)
	$(BIN)/python bench/soak.py --minutes $(or $(MINUTES),120)

soak-readers: setup ## read pinned snapshots from another process for a minute while the store is written at full speed
	$(BIN)/python -m tests.crash.snapshot_load $(ARGS)

spark-kills: setup java ## kill processes under Spark queries; each row must be written once: an hour (ROUNDS=200; select: ARGS='--only join,staged,driver')
	$(BIN)/python bench/spark_kills.py --rounds $(or $(ROUNDS),200) $(ARGS)

move-load: setup ## move a million messages to a cluster and back under load; nothing may be lost (ARGS='--messages 50000')
	$(BIN)/python bench/move_load.py $(ARGS)

move-kills: setup ## move streams to a cluster and back, and kill the tool, the server or a node in each move; nothing may be lost (ROUNDS=50)
	$(BIN)/python bench/move_kills.py --rounds $(or $(ROUNDS),50) $(ARGS)

table-kills: setup ## kill workers of an Iceberg table, broker and object store; each message must be there once (ROUNDS=500; ARGS='--plant rest')
	$(BIN)/python bench/table_kills.py --rounds $(or $(ROUNDS),500) $(ARGS)

table-spark: setup java ## read an Iceberg table with Spark 4.1 while it is written, compact it, and compare
	$(BIN)/python bench/table_spark.py $(ARGS)

archive-kills: setup ## kill and suspend servers with ack: remote beside a standby; nothing acknowledged may be lost (ROUNDS=50; ARGS='--target seaweed')
	$(BIN)/python bench/archive_kills.py --rounds $(or $(ROUNDS),50) $(ARGS)

archive-bench: setup ## compare ack: remote with a replicated stream of three nats-servers (ARGS='remote --targets seaweed')
	$(BIN)/python bench/archive.py $(or $(ARGS),remote)

edge: setup ## collect streams from sites over slow networks that break; copies must equal the sites' histories (MINUTES=60, SITES=8; replay: ARGS='--seed 2')
	$(BIN)/python bench/edge.py --minutes $(or $(MINUTES),60) --sites $(or $(SITES),8) $(ARGS)

mutants: setup ## plant bugs in store, broker, claims and settings, one at a time; each must make a test fail
	PYTHONPATH=tests $(BIN)/python -m tests.crash.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.backup_mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.archive_mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.two_broker_mutants
	PYTHONPATH=tests $(BIN)/python -m tests.sim.keyed_mutants
	PYTHONPATH=tests $(BIN)/python -m tests.claims.mutants
	PYTHONPATH=tests $(BIN)/python -m tests.unit.mutants

# `--suite` and `--orbit` are checkouts; `--python` is a Python with the packages that these tests or examples need.
conformance-natspy: setup ## run the tests of nats.py and orbit.py against Headrace (ARGS='--suite PATH --orbit PATH --python PYTHON')
	$(BIN)/python bench/natspy.py $(ARGS)

conformance-faststream: setup ## run FastStream's tests for NATS against Headrace (ARGS='--suite PATH --python PYTHON')
	$(BIN)/python bench/faststream.py $(ARGS)

conformance-examples: setup ## run the examples of FastStream and taskiq-nats against Headrace (ARGS='--suite PATH --python PYTHON')
	$(BIN)/python bench/examples.py $(ARGS)

# Debian packages that tests use, as "package:command". Tests that need a missing one are skipped or fail.
PARTS := openjdk-17-jre-headless:java nodejs:node npm:npm chromium:chromium prometheus:promtool
IMAGE_PARTS := debootstrap:debootstrap iproute2:ip

# Installs the packages of $(1) whose commands are missing, as root only; otherwise says how. $(2) is the log file, and $(3) what happens without them.
define install_packages
	@missing=; for part in $(1); do command -v "$${part#*:}" >/dev/null || missing="$$missing $${part%:*}"; done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		mkdir -p out; echo "installing Debian packages:$$missing"; \
		($(TWICE) apt-get update && $(TWICE) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing) >$(2) 2>&1 \
		|| { tail -5 $(2); echo "could not install$$missing; $(3)"; }; \
	else \
		echo "missing:$$missing; $(3). On Debian: apt-get install$$missing"; \
	fi
endef

parts:
	$(call install_packages,$(PARTS),out/parts.log,the tests that need them are skipped or fail)

image-parts:
	@[ "$$(id -u)" = 0 ] || { echo "make test-image needs root: it uses chroot and namespaces"; exit 1; }
	$(call install_packages,$(IMAGE_PARTS),out/parts.log,make test-image needs them)

java: parts
	@version=$(JAVA_VERSION); \
	if [ "$${version:-0}" -lt $(JAVA_MIN) ]; then \
		echo "Java $(JAVA_MIN) or later is missing; the Spark tests need it. On Debian: apt-get install openjdk-17-jre-headless"; exit 1; \
	fi

clean: ## remove the virtual environment and build output
	rm -rf $(VENV) build dist out src/headrace/_native/*.so src/headrace/_native/*.c
