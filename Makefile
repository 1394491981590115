# make demo | test | test-slow | test-floors | check | bench | lock | sbom | release: each sets up
# what it needs in .venv first, from the locked versions in requirements/. The demo installs what
# the package needs to run, tests and checks add the rest.
# Tests of pages need Chromium and those of the roll PostgreSQL: installed with apt where this user
# may, else they say they skipped.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run
DEV := $(VENV)/.dev
LOCKS := requirements/run.txt requirements/build.txt requirements/torch.txt
# where it is set, each of the processes that tests start compiles all that it imports
export PYTHONDONTWRITEBYTECODE :=
# what a first import compiles is little of what is installed
PIP := $(BIN)/pip install --quiet --no-compile

.PHONY: demo test test-slow test-floors check bench bench-peers lock sbom release browser postgres clean

$(RUN): pyproject.toml $(LOCKS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes -r requirements/run.txt -r requirements/build.txt
	$(PIP) -r requirements/torch.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $(RUN)

$(DEV): $(RUN) requirements/dev.txt requirements/byzfl.txt
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) --no-deps --require-hashes -r requirements/byzfl.txt
	touch $(DEV)

demo: $(RUN)
	$(BIN)/archipel demo

browser:
	@command -v chromium >/dev/null || command -v chrome >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
	  apt-get install -y -qq chromium >/dev/null 2>&1; } || \
	echo "Chromium is not here and cannot be installed: tests of pages in a browser are skipped."

postgres:
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq >/dev/null 2>&1 && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null 2>&1; } || \
	echo "PostgreSQL is not here and cannot be installed: the roll is tested on SQLite alone."

# two more than cores: many tests wait for other processes
test: WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
test: $(DEV) browser postgres
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: $(DEV) browser
	$(BIN)/python -m pytest -m slow

test-floors: $(RUN)
	$(BIN)/python release/floors.py

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy release

bench: $(DEV)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/population.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/wire.py
	$(BIN)/python benchmarks/privacy.py
	$(BIN)/python benchmarks/secure.py
	$(BIN)/python benchmarks/proofs.py --keep
	$(BIN)/python benchmarks/rules.py --keep
	$(BIN)/python benchmarks/plan.py
	$(BIN)/python benchmarks/on_ray.py
	$(BIN)/python benchmarks/gossip.py

bench-peers:
	$(PYTHON) benchmarks/peers/install.py

# Keeps the versions that are locked as far as pyproject.toml allows; `make lock UPGRADE=--upgrade`
# takes the newest. The hashes are those of all files of a release, for any platform.
COMPILE := $(VENV)-lock/bin/pip-compile --quiet --generate-hashes --strip-extras \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	--unsafe-package torch --constraint requirements/torch.txt $(UPGRADE)
lock: export CUSTOM_COMPILE_COMMAND := make lock
lock:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "The lock is made with Python 3.11: make lock PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install --quiet pip-tools==7.6.2
	$(COMPILE) --output-file requirements/run.txt pyproject.toml
	$(COMPILE) --constraint requirements/run.txt --only-build-deps --build-deps-for editable \
	  --output-file requirements/build.txt pyproject.toml
	$(COMPILE) --constraint requirements/run.txt --constraint requirements/build.txt \
	  --all-extras --build-deps-for editable --output-file requirements/dev.txt pyproject.toml

sbom: $(RUN)
	$(BIN)/python release/bom.py

release: $(DEV)
	$(BIN)/python release/make.py

clean:
	rm -rf $(VENV) $(VENV)-lock $(VENV)-floors .pytest_cache .mypy_cache .ruff_cache
