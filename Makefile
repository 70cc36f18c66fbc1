# Every target does its own set-up: on a fresh machine `make test` or `make run` is the first command to type.
.DEFAULT_GOAL := help
.PHONY: help setup dashboard run test prepare lint checks screenshots chaos long soak bench bench-bus bench-celery bench-http bench-ladder bench-processes bench-rsmq bench-spark conformance coverage mutants mutation audit lock clean
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
# Tests start hundreds of short programs. Without bytecode files each of them would compile every module again.
export PYTHONDONTWRITEBYTECODE :=
# Two processes per core keep the cores busy; each further one costs a collection and servers of its own. Tests that
# share something slow to start form a group (tests/conftest.py), which runs in one process; the groups begin first.
PROCESSES = $(shell echo $$(( 2 * $$(nproc) )))

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Prepare .venv from the lock, and Debian packages where missing
	@scripts/setup.sh

dashboard: setup ## Build the dashboard into the package, if its sources changed
	@scripts/dashboard.sh

run: setup dashboard ## Start the sample shop with server and dashboard, and watch it (SECONDS=n to end by itself)
	@$(BIN)/restante demo $(if $(SECONDS),--seconds $(SECONDS))

test: setup dashboard ## Lint, then every test but the long fault runs (TESTS=path to choose)
	@$(MAKE) -j2 checks $(if $(TESTS),,prepare)
	$(BIN)/python -m pytest -m "not chaos" --durations=15 $(if $(TESTS),$(TESTS),-n $(PROCESSES) --dist loadgroup)

# What every test process would else do for itself, or wait for: compile the tests, and make Spark's class archive.
prepare: | setup dashboard
	@$(BIN)/python -m pytest --collect-only -qq > /dev/null || true
	@$(BIN)/python -m tests.harness.spark_archive

lint: setup checks ## Check style, types and which room imports which

checks: | setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

chaos: setup dashboard ## Every row of the fault matrix, with bounds of time, on a quiet machine (ROWS=1,5,20-25 to choose)
	$(BIN)/python -m tests.chaos $(if $(ROWS),--rows $(ROWS))

long: setup dashboard ## The long forms of all tests, many more random histories, and their bounds of time (TESTS=path)
	RESTANTE_EXAMPLES=3000 RESTANTE_BOUNDS=1 $(BIN)/python -m pytest -m "chaos or timed" --durations=15 $(TESTS)

soak: setup dashboard ## Load over every door with random faults for MINUTES=60, and a plot of what the servers held
	$(BIN)/python -m tests.chaos.soak $(if $(MINUTES),--minutes $(MINUTES))

bench: setup ## Measure against Redis' own limit and against peers
	$(BIN)/python -m benchmarks.run

bench-celery: setup ## Measure Celery on Restante beside Celery on Kombu's own Redis transport
	$(BIN)/python -m benchmarks.celery

bench-bus: setup ## Measure the event bus beside plain Celery, on Redis and on RabbitMQ
	$(BIN)/python -m benchmarks.bus

bench-processes: setup ## Measure CPU-bound handlers in one process and in one per core, on a quiet machine
	$(BIN)/python -m benchmarks.processes

bench-http: setup dashboard ## Measure the HTTP server and the dashboard
	$(BIN)/python -m benchmarks.http

bench-ladder: setup ## Measure RabbitMQ's ladder with classic and with quorum rungs, and kill the broker
	$(BIN)/python -m benchmarks.ladder

bench-rsmq: setup ## Measure the RSMQ client beside PyRSMQ and npm's rsmq
	$(BIN)/python -m benchmarks.rsmq

bench-spark: setup ## Measure the data pipeline on Spark
	$(BIN)/python -m benchmarks.spark

conformance: setup ## Run Celery's and Kombu's own integration suites on restante:// and redis://, and list what differs
	$(BIN)/python -m benchmarks.conformance

coverage: setup dashboard ## Run the whole suite and show which lines of each room it runs
	$(BIN)/python -m scripts.coverage_report

mutants: setup dashboard ## Plant realistic faults one by one and show which test catches each (ROOM=core to choose, RESUME=1)
	$(if $(ROOM)$(RESUME),,$(BIN)/python -m pytest -n $(PROCESSES) tests/core/test_mutants.py)
	$(BIN)/python -m tests.mutants $(if $(ROOM),--room $(ROOM)) $(if $(RESUME),--resume)

mutation: setup ## Try every small change to the modules that decide, and score the tests (mutmut; MODULE=core/retry)
	$(BIN)/python -m tests.mutants.decision_modules $(if $(MODULE),--module $(MODULE))

audit: setup ## Ask the public databases for known faults in the locked packages, before a release; needs the network
	$(BIN)/python -m scripts.audit

screenshots: setup dashboard ## Draw the pictures of the README from the running sample shop
	$(BIN)/python -m scripts.screenshots

lock: setup ## Pin the newest allowed versions, with hashes
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --extra dev --extra embedded \
	  pyproject.toml requirements/dev.in --output-file requirements/dev.lock

clean: ## Remove the environment, caches and built files
	rm -rf .venv dashboard/node_modules dashboard/src/types.ts src/restante/server/static .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
