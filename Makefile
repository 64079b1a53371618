# Two commands matter: `make serve` runs the server, `make test` proves it. Each sets up what it needs.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
STEPS  ?= 1000000
SEED   ?= 1
CYCLES ?= 200
RUNS   ?= 1000
CASES  ?= 1000000
JOBS   ?= 2
BIN    := .venv/bin

.PHONY: help setup serve test check format sync picture protocol reference sim crash faults fuzz bench lock clean

help:           ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/installed.txt   ## make .venv with everything in it (once)

# The stamp is newer than the lock and the project file, or the environment is made again from them.
.venv/installed.txt: requirements/dev.txt pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up .venv, once: a minute or two (Spark and its Java are large)" >&2
	@if command -v uv >/dev/null; then \
	  set -e; uv venv --quiet --allow-existing --python $(PYTHON) .venv; \
	  uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/dev.txt; \
	  uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else \
	  set -e; $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear .venv; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi
	@touch $@

.venv/bench.txt: .venv/installed.txt requirements/bench.txt
	@if command -v uv >/dev/null; then uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements/bench.txt; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.txt; fi
	@touch $@

serve: setup    ## run the server (ARGS="--tcp 127.0.0.1:0" for flags)
	@exec $(BIN)/forebay serve $(ARGS)

test: setup     ## run every test in two processes (ARGS="-k lease" for some, JOBS=0 for one process)
	@PYTHONUNBUFFERED=1 $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: setup    ## format, lint, types
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python tools/make_sync.py --check
	@$(BIN)/python tools/make_places.py --check
	@$(BIN)/python tools/make_protocol.py --check
	@$(BIN)/python tools/make_reference.py --check
	@$(BIN)/mypy

format: setup   ## put the code in shape
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

sync: setup     ## write the blocking client anew from the one for asyncio
	@$(BIN)/python tools/make_sync.py

picture: setup  ## draw the places of a message in docs/ARCHITECTURE.md from the table of moves
	@$(BIN)/python tools/make_places.py

protocol: setup ## write the tables of docs/PROTOCOL.md from the declarations of the operations
	@$(BIN)/python tools/make_protocol.py

reference: setup ## write docs/REFERENCE.md from the code of the client
	@$(BIN)/python tools/make_reference.py

sim: setup      ## random lives against the model: make sim STEPS=1000000 SEED=7
	@$(BIN)/python -m tests.sim.drive --steps $(STEPS) --seed $(SEED)
	@$(BIN)/python -m tests.sim.job_drive --steps $$(($(STEPS) / 10)) --seed $(SEED)
	@$(BIN)/python -m tests.sim.stage_drive --steps $$(($(STEPS) / 10)) --seed $(SEED)
	@$(BIN)/python -m tests.sim.shards_life --steps $$(($(STEPS) / 10)) --seed $(SEED)

crash: setup    ## kill -9 the server, and Spark, under load, again and again: make crash CYCLES=200 SEED=1
	@$(BIN)/python -m tests.crash.harness --cycles $(CYCLES) --seed $(SEED)
	@$(BIN)/python -m tests.crash.harness --cycles $$(($(CYCLES) / 3 + 1)) --seed $(SEED) --postgres
	@$(BIN)/python -m tests.crash.harness --cycles $$(($(CYCLES) / 10 + 1)) --seed $(SEED) --database
	@$(BIN)/python -m tests.crash.jobs --cycles $(CYCLES) --seed $(SEED)
	@$(BIN)/python -m tests.crash.crons --kills $(CYCLES) --seed $(SEED)
	@$(BIN)/python -m tests.crash.workers --rounds $$(($(CYCLES) / 5 + 1)) --seed $(SEED)
	@$(BIN)/python -m tests.crash.dependents --rounds $$(($(CYCLES) / 3 + 1)) --seed $(SEED)
	@$(BIN)/python -m tests.spark.kills --case queue-to-queue --kills $$(($(CYCLES) / 10 + 1)) --seed $(SEED)
	@$(BIN)/python -m tests.spark.kills --case queue-to-parquet --kills $$(($(CYCLES) / 10 + 1)) --seed $(SEED)
	@$(BIN)/python -m tests.spark.kills --case executor --kills $$(($(CYCLES) / 10 + 1)) --seed $(SEED)
	@$(BIN)/python -m tests.spark.kills --case server --kills $$(($(CYCLES) / 10 + 1)) --seed $(SEED)

faults: setup   ## power losses, bit flips, and nodes that fight over a database: make faults RUNS=1000 SEED=1
	@$(BIN)/python -m tests.store.power --runs $$(($(RUNS) / 3 + 1)) --seed $(SEED)
	@$(BIN)/python -m tests.store.flips --flips $(RUNS) --seed $(SEED)
	@$(BIN)/python -m tests.store.fights --runs $(RUNS) --seed $(SEED)

fuzz: setup     ## broken requests over HTTP and TCP: make fuzz CASES=1000000 SEED=1
	@$(BIN)/python -m tests.server.fuzz --cases $(CASES) --seed $(SEED)

bench: .venv/bench.txt   ## figures of this machine, side by side with a peer
	@$(BIN)/python -m bench.core
	@$(BIN)/python -m bench.delivery
	@$(BIN)/python -m bench.jobs
	@$(BIN)/python -m bench.tenants
	@$(BIN)/python -m bench.queues
	@$(BIN)/python -m bench.wire
	@$(BIN)/python -m bench.http
	@$(BIN)/python -m bench.identity
	@$(BIN)/python -m bench.stores
	@$(BIN)/python -m bench.spark
	@$(BIN)/python -m bench.tasks

lock:           ## write requirements/*.txt anew (needs uv)
	@command -v uv >/dev/null || { echo "uv is needed to lock: pip install uv"; exit 1; }
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  --extra dev --extra spark pyproject.toml -o requirements/dev.txt
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url \
	  --extra bench --constraint requirements/dev.txt pyproject.toml -o requirements/bench.txt

clean:          ## remove the environment and caches
	@rm -rf .venv .mypy_cache .ruff_cache .hypothesis
