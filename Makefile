# From nothing to a run: `make demo` and `make test` create .venv, install into it and go. Python >= 3.10 is all they need.
#
#   PYTHON=python3.12   the interpreter that .venv is made from
#   PYTHONS=            interpreters that `make packages` builds for: python3.10 to python3.13, as far as they are here
#   PIP_FLAGS=...       more flags for pip, e.g. --extra-index-url https://download.pytorch.org/whl/cpu
#   JOBS=2              processes that pytest uses
#   TESTS=              tests that `make test` runs, as pytest's -m selects them: all if empty, by default 'not slow'
#   FUZZ_SECONDS=600    how long `make fuzz` compares both halves of the trace reader

PYTHON ?= python3
PIP_FLAGS ?=
JOBS ?= 2
TESTS ?= not slow
FUZZ_SECONDS ?= 600
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS) -c constraints.txt
# On all processors, where pip would use one, and not for `make demo`, which needs few files. Errors are ignored, because
# packages contain files for other versions of Python.
COMPILE = @$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib cli initializers replay traces || true
# Each process begins with a part of the tests in their order, so that those of a file share what they prepare.
SHARED = -n $(JOBS) --dist worksteal
SAMPLE := traces/samples/transformer_infer.json.gz

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all packages fuzz sanitize lint format docs docs-figures clean

help:
	@echo "make demo    run opreplay on a bundled trace, beside a simulated Ascend 910B3"
	@echo "make test    the tests but for the slow ones;  make test-all  these, too"
	@echo "make packages  sdist and wheels in dist/, for each Python that is here, and each used in an empty environment"
	@echo "make fuzz    damaged traces through both halves of the reader, then the property tests, new examples each time"
	@echo "make sanitize  the compiled reader under the address and undefined-behaviour sanitizers"
	@echo "make lint    ruff and pyright;  make format rewrites"
	@echo "make docs    the documentation, in docs/_build/html"
	@echo "make docs-figures  figures and outputs in the documents that the program knows, but for what it measures"
	@echo "make clean   remove what was built, .venv too"

# Modules are compiled once, even where the environment says to write no bytecode, as that of a container often does:
# later commands then start in a third of the time.
demo: export PYTHONDONTWRITEBYTECODE =
demo: $(VENV)/.installed
	$(BIN)/opreplay run $(SAMPLE) --soc 910b3

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(SHARED) -m '$(TESTS)' $(PYTEST_FLAGS)

test-all:
	$(MAKE) test TESTS=

packages: $(VENV)/.installed
	$(BIN)/python .ci/packages.py --link-torch --out dist $(PYTHONS)

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.traces.reading.native.differential --seconds $(FUZZ_SECONDS)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest $(SHARED) -m hypothesis $(PYTEST_FLAGS)

sanitize: $(VENV)/.installed-test
	.ci/sanitize $(BIN)/python

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

docs-figures: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks.document_figures
	$(BIN)/python -m benchmarks.document_outputs --no-measure

clean:
	rm -rf $(VENV) build dist docs/_build .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp a set of packages: a second call installs nothing unless the requirements changed.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "$(PYTHON) is older than 3.10: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt $(wildcard traces/reading/native/*.[ch])
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	$(INSTALL) -e '.[$*]'
	$(COMPILE)
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed tests/readers.txt
	$(INSTALL) -e '.[test]'
	$(INSTALL) --no-deps -r tests/readers.txt
	$(COMPILE)
	@touch $@
