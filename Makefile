# Everything from a fresh clone: Python 3.11 to 3.13 and make are all that has to be there.

PYTHON ?=                      # the interpreter for .venv; found by itself when empty
PYTEST_ARGS ?=                 # for example PYTEST_ARGS="-k receipt -x"
JOBS ?= 2                      # test processes; 0 runs the tests in one
DEMO_ARGS ?=                   # for example DEMO_ARGS="--orders 500"
SERVE_ARGS ?=                  # for example SERVE_ARGS="--bind 0.0.0.0:8000"
LARGE_ARGS ?=                  # for example LARGE_ARGS="--tenth", or "--millions 10"
BENCH_ARGS ?= --only awa-pg,awa_django --scenarios tuned

BIN := .venv/bin
# Errors only: warnings of pip are about the machine it runs on.
PIP := --quiet --quiet --disable-pip-version-check
MANAGE := $(BIN)/python example_project/manage.py

.DEFAULT_GOAL := help
.PHONY: help demo serve test large screenshots lint format bench clean .venv

help: ## list the targets
	@echo "awa_django: make TARGET"
	@echo
	@awk -F ':.*## ' '/^[a-z.]+:.*## / { printf "  %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "DATABASE_URL=postgresql://user@host/db points them at your own PostgreSQL;"
	@echo "without it they start one of their own, from a Python package."

demo: .venv ## run the example shop: orders, jobs, retries, and a table that checks itself
	@$(MANAGE) migrate --verbosity 0
	@$(MANAGE) demo $(DEMO_ARGS)

serve: .venv ## web server with the admin, and a worker; Ctrl-C stops both
	@$(MANAGE) migrate --verbosity 0
	@$(MANAGE) serve $(SERVE_ARGS)

test: lint ## linters, types, import contract, migrations check, then the whole test suite
	$(BIN)/pytest -n $(strip $(JOBS)) --dist loadgroup $(PYTEST_ARGS)

large: .venv ## the admin on a million finished and 200,000 waiting jobs: what each page takes
	@$(BIN)/python -m tests.scenarios.large $(LARGE_ARGS)

screenshots: .venv ## make the pictures of the documentation anew, in docs/images/; needs a Chromium
	AWA_SCREENSHOTS=1 AWA_REQUIRE_BROWSER=1 $(BIN)/pytest tests/browser/test_desk.py

lint: .venv ## what pre-commit and CI check besides the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MANAGE) makemigrations --check --dry-run

format: .venv ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv ## measure against other queues (benchmarks/); see BENCH_ARGS
	cd benchmarks && ../$(BIN)/python -m peers run $(BENCH_ARGS)

clean: ## remove the environments, the demo's database and every cache
	@if [ -f .venv/.installed ]; then $(BIN)/python -m example_project.embedded reset --all; fi
	rm -rf .venv .venv-compat .awa-demo build dist *.egg-info .coverage htmlcov benchmarks/.venv*
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv: .venv/.installed ## the Python environment that all targets use

# The file is written last: an installation that broke off is done again.
.venv/.installed: pyproject.toml
	@python="$(strip $(PYTHON))"; \
	for candidate in $$python python3 python3.13 python3.12 python3.11; do \
	    if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	        && $$candidate -c 'import ensurepip, venv' 2>/dev/null; then found=$$candidate; break; fi; \
	    if [ -n "$$python" ]; then break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "Python 3.11, 3.12 or 3.13 with its venv module is needed$${python:+, and $$python is not that}." >&2; \
	    echo "On Debian: apt-get install python3 python3-venv. Or name one: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	fi; \
	if [ ! -x $(BIN)/python ]; then \
	    echo "making .venv with $$($$found --version)"; \
	    $$found -m venv .venv; \
	fi
	@echo "installing from pyproject.toml (the first time takes a minute or two)"
	@{ $(BIN)/python -m pip install $(PIP) --upgrade 'pip>=25.1' \
	    && $(BIN)/python -m pip install $(PIP) --editable '.[demo]' --group dev; } || { \
	    echo "The installation broke off; the reason is above. Where PyPI cannot be reached, PIP_INDEX_URL names" >&2; \
	    echo "a mirror. The next make goes on from here." >&2; exit 1; }
	@touch $@
