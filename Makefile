# The front door of the repository: `make run` for those who use it, `make test` for those who change it.
# Stamp files under .venv make each step run once; a changed lock or pyproject.toml runs it again.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# What takes minutes shows what it is at: names as they come, and bars on a terminal.
PIP_SHOWN := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := app engine history sdk spark tests bench .ci
SDK := tests/sdk
TOOLS := $(VENV)/tools
CLASSES := $(VENV)/spark-classes.jsa
NOT_RUN := .not-run
# When `make soak` last ended, and on which tree; kept with the tests.
SOAKED := tests/soaked.txt
WORKERS ?= 5
SECOND_LOOK := $(BIN)/python .ci/second_look.py $(NOT_RUN) $(BIN)/pytest
COMPILE := $(BIN)/python -m compileall -q app engine history sdk/python/weir spark/pyspark_weir

.DEFAULT_GOAL := help
.PHONY: help run install spark history dev system test fmt lint types contracts tests collected early together alone coverage prove soak bench pictures image lock client typescript clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.project  ## start the gateway on 127.0.0.1:8080; more options with ARGS="--port 9000"
	@$(COMPILE)
	@exec $(BIN)/weir serve $(ARGS)

install: $(VENV)/.project  ## make .venv with what running needs

spark: $(VENV)/.spark  ## the same, and what `weir-spark` needs: Spark, Arrow, a Java; half a gigabyte

history: $(VENV)/.history  ## what running needs, and what `weir history serve` needs: Arrow and Delta, no Spark

dev: $(VENV)/.dev  ## make .venv with what the gate needs as well

test: system  ## the whole gate: formatting, lint, types, contracts, tests
	@# Beside each other, since each waits for its downloads.
	@$(MAKE) --no-print-directory --jobs=3 dev $(TOOLS)/.stamp $(SDK)/node_modules/.stamp
	@# mypy keeps one core busy for minutes where its cache is new: before the tests, which share two with servers.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types $(CLASSES) lint contracts collected early
	@$(MAKE) --no-print-directory --jobs=1 together
	@# What measures time has the machine for itself.
	@$(MAKE) --no-print-directory --jobs=1 alone

fmt: dev  ## format, and fix what ruff can fix
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

lint: dev  ## formatting, lint, dead code
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/python .ci/dead_code.py

types: dev  ## mypy, strict, tests included
	$(BIN)/mypy

contracts: dev  ## who may import whom
	$(BIN)/lint-imports --no-logo

# Pytest rewrites the assertions of all tests, for half a minute; compiled, they are read by each process after it.
collected early together alone coverage: export PYTHONDONTWRITEBYTECODE :=

tests:  ## pytest on all cores; for some of them: .venv/bin/pytest -k name
	@$(MAKE) --no-print-directory --jobs=1 early together alone

collected: dev
	@$(BIN)/pytest --collect-only --quiet > $(VENV)/.collected 2>&1 || { cat $(VENV)/.collected; exit 1; }

early: dev $(SDK)/node_modules/.stamp  ## within seconds: what the tree says about itself
	@# Hundreds of processes of the gateway start in tests, and each would compile its modules where none are written.
	@$(COMPILE)
	@rm -f $(NOT_RUN)
	node --import ./tests/console/unit/modules.mjs --test tests/console/unit/*.test.mjs
	$(BIN)/pytest -m early --not-run=$(NOT_RUN)

# Of what is repeated or tried at random, half, which the tree chooses; `make test HALF=` runs all of it.
HALF ?= --half
# More processes than cores, since tests wait for servers, disks and Spark half of their time.
BESIDE_OTHERS := -m "not (early or paired or alone)" --numprocesses=$(WORKERS)
together: dev system $(CLASSES) $(TOOLS)/.stamp $(SDK)/node_modules/.stamp
	$(SECOND_LOOK) $(BESIDE_OTHERS) $(HALF) --not-run=$(NOT_RUN)

# What measures time.
alone: dev system
	$(SECOND_LOOK) -m paired --numprocesses=2 --not-run=$(NOT_RUN)
	$(SECOND_LOOK) -m alone --not-run=$(NOT_RUN)
	@cat $(NOT_RUN) 2>/dev/null || true
	@echo "make soak, which tries all of it, last ended: $$(cat $(SOAKED) 2>/dev/null || echo never)"
	@grep -qsv '^the half' $(NOT_RUN) || echo "every test could run here, and none failed once"

# Not in the gate: a test takes 1.7 times as long when it is measured.
coverage: dev system $(CLASSES) $(TOOLS)/.stamp $(SDK)/node_modules/.stamp  ## branch coverage and its floors; nightly, before a release, and when code has lost tests
	$(BIN)/pytest $(BESIDE_OTHERS) --cov --cov-report=json:.coverage.json
	@$(BIN)/python .ci/module_coverage.py .coverage.json

prove: dev  ## plant bugs into the code, and show that the proof and the tests find every one; MATRIX=1 asks all tests
	$(BIN)/python -m tests.proof.$(if $(MATRIX),matrix,prove) $(ARGS)

soak: dev system  ## all that is tried at random, the long proofs of webhooks, and of durability beside Redis's figures; minutes with ARGS="480"
	$(BIN)/pytest -m "halved or hypothesis" --numprocesses=$(WORKERS)
	$(BIN)/python -m tests.app.random_bodies 1000000
	WEIR_KILLS=20 WEIR_TASKS=10000 $(BIN)/pytest tests/crash/test_taskiq.py
	WEIR_KILLS=40 WEIR_TASKS=20000 $(BIN)/pytest tests/crash/test_ordering.py
	WEIR_KILLS=50 WEIR_TASKS=4900 $(BIN)/pytest tests/documents/test_reliable_queue.py
	$(BIN)/python -m tests.proof.soak $(ARGS)
	$(BIN)/python -m tests.push.crashes 100000 50
	@echo "$$(date -u +%F), tree $$($(BIN)/python -c 'from tests.halves import tree; print(tree())')" > $(SOAKED)

bench: dev  ## every figure of docs/speed.md beside its peer; some of them with ARGS="--only P5,P7"
	$(BIN)/python -m bench $(ARGS)

pictures: dev system  ## take the pictures of docs/console.md anew, after a change of the console
	WEIR_PICTURES=1 $(BIN)/pytest tests/console/test_pictures.py

image:  ## build the container's image with buildah, and run it from its root file system; minutes, as root
	@.ci/image

system:  ## what the gate needs from outside: redis-server, node, npm, strace, chromium, prometheus, nginx, caddy, java, go
	@.ci/system-packages "$(PYTHON)" $(VENV)

lock: dev  ## newest versions that pyproject.toml and the .in files allow, with hashes and without hosts
	.ci/lock
	cd $(SDK) && npm update --package-lock-only

client: dev  ## write the synchronous Python client from the asynchronous one
	$(BIN)/python .ci/sync_client.py

typescript: dev $(SDK)/node_modules/.stamp  ## generate the types of the TypeScript client from the API's documents
	$(BIN)/python .ci/typescript_types.py sdk/typescript/src/documents

clean:  ## remove .venv, caches and everything that was built; data stays
	rm -rf $(VENV) $(SDK)/node_modules .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .coverage .coverage.* $(NOT_RUN) dist

$(VENV)/.made: requirements-build.lock
	@.ci/make-venv "$(PYTHON)" $(VENV)
	@$(PIP) install --require-hashes -r requirements-build.lock
	@touch $@

$(VENV)/.locked: requirements.lock $(VENV)/.made
	@echo "installing what requirements.lock names"
	@$(PIP_SHOWN) install --require-hashes -r requirements.lock
	@touch $@

$(VENV)/.project: pyproject.toml engine/_rows.c .ci/build_rows.py sdk/python/pyproject.toml spark/pyproject.toml $(VENV)/.locked
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable . --editable sdk/python --editable spark
	@touch $@

# PySpark is a source distribution of 450 MB. Pip builds a wheel of it once, which its cache keeps for every
# environment after this one, and does not download again what a lock's hash finds there.
$(VENV)/.spark: requirements-spark.lock $(VENV)/.project
	@echo "installing what requirements-spark.lock names; the first time, Spark takes a few minutes"
	@$(PIP_SHOWN) install --require-hashes --no-build-isolation -r requirements-spark.lock
	@touch $@

$(VENV)/.history: requirements-history.lock $(VENV)/.project
	@echo "installing what requirements-history.lock names"
	@$(PIP_SHOWN) install --require-hashes -r requirements-history.lock
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.spark
	@echo "installing what requirements-dev.lock names"
	@$(PIP) install --no-compile --require-hashes --no-build-isolation -r requirements-dev.lock
	@touch $@

# Tests start Spark some forty times, and half of a start is reading classes.
$(CLASSES): $(VENV)/.spark
	@rm -f $@
	@$(BIN)/python -m tests.spark.classes

$(TOOLS)/.stamp: requirements-tools.lock $(VENV)/.made
	@.ci/make-venv "$(PYTHON)" $(TOOLS)
	@echo "installing what requirements-tools.lock names"
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check --quiet install --no-compile --require-hashes -r requirements-tools.lock
	@touch $@

$(SDK)/node_modules/.stamp: $(SDK)/package.json $(SDK)/package-lock.json | system
	@cd $(SDK) && npm ci --no-audit --no-fund --loglevel=error
	@touch $@
