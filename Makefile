# Every target makes the environment first, if need be: on a fresh machine any of them is the first command.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RARELY_IMPORTED := /tests?/|/transformers/models/|/(plotly|debugpy|databricks|pip|setuptools|moto|rllib|networkx)/

# Most of what runs here starts processes of its own; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test types units bench browser screenshots check clean

demo: $(READY)
	$(BIN)/python bench/demo.py

# Several tests run at once: were each to use all cores, its threads would wait for one another's turns on them.
test: export OMP_NUM_THREADS := 1
test: $(READY)
	-@$(MAKE) --no-print-directory browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
# Types are looked at on one core, so the first tests run beside.
	$(MAKE) --no-print-directory --jobs 2 types units
# These wait for processes of their own a third of the time, so four at once keep two cores busy.
	$(BIN)/python -m pytest -m "process and not slow and not gpu" -n 4 --dist loadfile --durations=60
	@command -v chromium > /dev/null || echo "skipped: what a real browser shows of the live page, for there is no chromium"

types: $(READY)
	$(BIN)/mypy dovetail

units: $(READY)
	$(BIN)/python -m pytest -m "not slow and not gpu and not process" -n 2 --dist loadfile --durations=40

# What the tests of the live page drive: found, or installed where this user may; without it they are skipped, and say so.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
		timeout 300 apt-get install --quiet --quiet --yes --no-install-recommends chromium; } || \
		echo "no chromium is here, and it cannot be installed: tests in a real browser are skipped"

screenshots: $(READY)
	$(BIN)/python docs/make_screenshots.py

bench: $(READY)
	$(BIN)/python bench/all.py

# Pins live in constraints.txt, and in constraints-s3.txt what no resolver would put beside them; pyproject.toml carries
# ranges.
$(READY): pyproject.toml constraints.txt constraints-s3.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt torch==2.13.0
# uv takes ten seconds where pip takes two minutes; where it is not to be had, or does not find everything, pip does it.
	-@$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[dev]' || \
		$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement constraints-s3.txt
# Packages compile on all cores here, which pip does on one; what is rarely imported compiles when it is. What some of
# them carry is for other versions of Python.
	-@$(BIN)/python -m compileall -q -j 0 -x '$(RARELY_IMPORTED)' $(VENV)/lib > /dev/null 2>&1
	touch $(READY)

clean:
	rm -rf $(VENV) .dovetail
