# `make demo` and `make test` set everything up by themselves, in .venv. `make help` lists the rest.
#
#   TORCH   what pip installs when there is no torch >= 2.11 yet. One in .venv, or in PYTHON's own
#           packages when .venv is made, is kept.
#           Example: make demo TORCH="torch --index-url https://download.pytorch.org/whl/cpu"
#   PYTHON  the interpreter that makes .venv (3.11 or newer)
#   MODEL   for `make bench` and `make soak`; SMALL is its draft model, VLLM and OPENVINO the Pythons
#           of environments with vllm, and with openvino-genai and optimum-intel, and LLAMA a folder
#           with llama.cpp: for `make bench`. benchmarks/prepare_peers.sh makes all three
#   COVERAGE=1 for `make test`: prints branch coverage by room, held to floors
#   MINUTES that `make soak` loads the server for; BODIES that `make fuzz` sends; WORKERS that
#           run tests, one to a core
#
# pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf, ...) are honoured everywhere.

PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
TORCH ?= torch==2.13.0
MODEL ?= smollm2-135m
MINUTES ?= 30
BODIES ?= 100000
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))
PEER := $(if $(VLLM),--vllm $(VLLM))

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip
PYTEST := $(PY) $(if $(COVERAGE),-m coverage run) -m pytest
COMMA := ,
BY_FILE := --dist loadfile --no-loadscope-reorder
NATIVE = $(wildcard src/paceline/kernels/native/*.h src/paceline/kernels/native/*.cpp)
HAS_TORCH := 'import sys, torch; v = torch.__version__.split(".")[:2]; sys.exit(list(map(int, v)) < [2, 11])'

.DEFAULT_GOAL := help
.PHONY: help demo demo-picture demo-train demo-autospec test test-docs test-all clients lint format types bench soak fuzz docs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

demo: $(VENV)/.ready-core ## serve SmolLM2 and show speculation off and on, side by side
	$(PY) -m paceline.cli.demo

demo-picture: $(VENV)/.ready-core ## the same, and draw docs/images/demo.svg from its real output
	$(PY) -m paceline.cli.demo --svg docs/images/demo.svg

demo-train: $(VENV)/.ready-train ## a drafter for an application: data, training, before and after, serving
	$(PY) -m paceline.cli.demo_train $(ARGS)

demo-autospec: $(VENV)/.ready-autospec ## an app's traffic changes, and its drafter follows by itself: a day in ten minutes (ARGS=--weights: and weights learn)
	$(PY) -m paceline.cli.demo_autospec $(ARGS)

test: $(VENV)/.ready-test ## the tests, without the slow ones, on WORKERS cores at once
	$(PYTEST) -m "not slow and not docs" -n $(WORKERS) $(BY_FILE) $(ARGS)
	$(if $(COVERAGE),$(PY) -m coverage combine -q)
	$(if $(COVERAGE),$(PY) -m coverage json -q -o - | $(PY) -m tools.coverage_by_room)

test-docs: $(VENV)/.ready-test ## the README's commands, Python blocks of the docs, and shell blocks marked `run`
	$(PYTEST) -m docs -n $(WORKERS) --dist loadgroup tests/docs $(ARGS)

test-all: $(VENV)/.ready-test ## every test
	$(PYTEST) -n $(WORKERS) $(BY_FILE) $(ARGS)

clients: $(VENV)/.ready-core ## send a first user's requests with other makers' clients; ARGS="--write" updates docs/clients.md
	$(PY) -m tools.clients $(ARGS)

lint: $(VENV)/.ready-dev ## rules and format of Python and C++; who may import whom; the page's types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE)
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m tools.page_types --check
	$(PY) -m tools.lines

format: $(VENV)/.ready-dev ## mend the format of Python and C++; write the page's types
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(NATIVE)
	$(PY) -m tools.page_types

types: $(VENV)/.ready-dev node_modules/.ready ## mypy, and TypeScript over the page's JavaScript
	$(PY) -m mypy
	$(VENV)/bin/node node_modules/typescript/bin/tsc --project tsconfig.json

bench: $(VENV)/.ready-core ## the tables of docs/benchmarks.md for MODEL (hours, on an idle machine; can be stopped)
	$(PY) benchmarks/all_tables.py "$(MODEL)" $(PEER) $(if $(SMALL),--small "$(SMALL)") \
		$(if $(OPENVINO),--openvino "$(OPENVINO)") $(if $(LLAMA),--llama "$(LLAMA)") $(ARGS)

soak: $(VENV)/.ready-test ## load test: MINUTES of mixed traffic at saturation, then a drain
	$(PY) benchmarks/soak.py "$(MODEL)" --minutes $(MINUTES) $(ARGS)

fuzz: $(VENV)/.ready-test ## BODIES of hostile requests to a real server: deaths, 5xx, stalls, leaks
	$(PY) -m tests.fuzz --bodies $(BODIES) $(ARGS)

docs: $(VENV)/.ready-docs ## build the documentation into docs/_build/html
	$(PY) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

clean: ## remove build products; .venv stays
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src -name '*.egg-info' -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $$($(PYTHON) -c $(HAS_TORCH) 2>/dev/null && echo --system-site-packages) $(VENV)

# torch comes first and alone, so that its build (CPU or CUDA) is chosen by TORCH and pip's settings
# and nothing that follows replaces it.
$(VENV)/.ready-torch: | $(VENV)/bin/python
	@if $(PY) -c $(HAS_TORCH) 2>/dev/null; then echo "keeping the torch in $(VENV)"; else $(PIP) install $(TORCH); fi
	@$(PY) -c $(HAS_TORCH) 2>/dev/null || { echo "TORCH=\"$(TORCH)\" gave no torch >= 2.11" >&2; exit 1; }
	@touch $@

$(VENV)/.ready-core: pyproject.toml $(VENV)/.ready-torch
	$(call install,.)

$(VENV)/.ready-train $(VENV)/.ready-autospec $(VENV)/.ready-test $(VENV)/.ready-dev $(VENV)/.ready-docs: $(VENV)/.ready-%: $(VENV)/.ready-core
	$(call install,.[$*])

# All that .ci/run needs, in one installation in place of four.
$(VENV)/.ready-all: pyproject.toml $(VENV)/.ready-torch
	$(call install,.[test$(COMMA)dev$(COMMA)docs])
	@touch $(addprefix $(VENV)/.ready-,core test dev docs)

# TypeScript and uPlot's types, for `make types` alone. node comes with the Python packages of dev.
node_modules/.ready: package.json package-lock.json | $(VENV)/.ready-dev
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" npm ci --no-fund --no-audit
	@touch $@

define install
	@$(PIP) list --format=freeze 2>/dev/null | grep -E '^torch==' > $(VENV)/torch-constraint.txt
	@echo "installing '$(1)' into $(VENV)"
	@$(PIP) install -q -c $(VENV)/torch-constraint.txt -e '$(1)'
	@touch $@
endef
