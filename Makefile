# make demo | test | test-slow | check | bench: each sets up what it needs in .venv first.
# Tests of pages need Chromium and those of the roll PostgreSQL: installed with apt where this user
# may, else they say they skipped.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: demo test test-slow check bench bench-peers browser postgres clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
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

test: $(STAMP) browser postgres
	$(BIN)/python -m pytest

test-slow: $(STAMP) browser
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/overhead.py

bench-peers:
	$(PYTHON) benchmarks/peers/install.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
