# Every target does its own set-up: on a fresh machine `make test` or `make run` is the first command to type.
.DEFAULT_GOAL := help
.PHONY: help setup dashboard run test lint screenshots chaos bench bench-bus bench-celery bench-http bench-rsmq bench-spark lock clean
MAKEFLAGS += --no-print-directory
BIN := .venv/bin
# Spark's tests, and those of compat, share what a file has set up; the others share servers by process, so idle processes take over tests.
TWO := -n 2 --dist worksteal
THREE := -n 3 --dist worksteal
TWO_FILES := -n 2 --dist loadfile --no-loadscope-reorder
# Not beside tests/browser: its driver keeps an event loop running in the process, where no other may run.
FAULTS := tests/faults tests/bus tests/rabbitmq
DOORS := tests/celery tests/server tests/browser
FILES := tests/spark tests/compat

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Prepare .venv from the lock, and Debian packages where missing
	@scripts/setup.sh

dashboard: setup ## Build the dashboard into the package, if its sources changed
	@scripts/dashboard.sh

run: setup dashboard ## Start the sample shop with server and dashboard, and watch it (SECONDS=n to end by itself)
	@$(BIN)/restante demo $(if $(SECONDS),--seconds $(SECONDS))

test: setup dashboard lint ## Lint, then every test but the long fault runs (TESTS=path to choose)
ifdef TESTS
	$(BIN)/python -m pytest -m "not chaos" --durations=15 $(TESTS)
else
	@# Most tests wait half of the time, so three processes share two cores well; what has bounds of time has two.
	status=0; \
	$(BIN)/python -m pytest -m "not chaos" --durations=15 $(THREE) $(addprefix --ignore=,$(FAULTS) $(DOORS) $(FILES)) || status=1; \
	$(BIN)/python -m pytest -m "not chaos" --durations=15 $(TWO) $(FAULTS) || status=1; \
	$(BIN)/python -m pytest -m "not chaos" --durations=15 $(THREE) $(DOORS) || status=1; \
	$(BIN)/python -m pytest -m "not chaos" --durations=15 $(TWO_FILES) $(FILES) || status=1; \
	exit $$status
endif

lint: setup ## Check style, types and which room imports which
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

chaos: setup ## The long fault runs, and more random histories
	RESTANTE_EXAMPLES=3000 $(BIN)/python -m pytest -m chaos --durations=15 $(TESTS)

bench: setup ## Measure against Redis' own limit and against peers
	$(BIN)/python -m benchmarks.run

bench-celery: setup ## Measure Celery on Restante beside Celery on Kombu's own Redis transport
	$(BIN)/python -m benchmarks.celery

bench-bus: setup ## Measure the event bus beside plain Celery, on Redis and on RabbitMQ
	$(BIN)/python -m benchmarks.bus

bench-http: setup dashboard ## Measure the HTTP server and the dashboard
	$(BIN)/python -m benchmarks.http

bench-rsmq: setup ## Measure the RSMQ client beside PyRSMQ and npm's rsmq
	$(BIN)/python -m benchmarks.rsmq

bench-spark: setup ## Measure the data pipeline on Spark
	$(BIN)/python -m benchmarks.spark

screenshots: setup dashboard ## Draw the pictures of the README from the running sample shop
	$(BIN)/python -m scripts.screenshots

lock: setup ## Pin the newest allowed versions, with hashes
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --extra dev --extra embedded \
	  pyproject.toml requirements/dev.in --output-file requirements/dev.lock

clean: ## Remove the environment, caches and built files
	rm -rf .venv dashboard/node_modules src/restante/server/static .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
