# make demo   set all up and voice examples/manifest.jsonl into wavs/
# make test   set all up and run the tests
# make lint   style: ruff check and ruff format
# make checkpoint   write omnitts/checkpoints/noise anew: random weights, for tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format checkpoint clean

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/omnitts check examples/manifest.jsonl
	$(BIN)/omnitts synth examples/manifest.jsonl --out wavs --recipe fast --save-codes

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# noise is random weights from a seed: the same bytes each time. The default checkpoint, mini, was trained: training/.
checkpoint: $(VENV)/.installed
	$(BIN)/python scripts/make_random_checkpoint.py omnitts/checkpoints/noise

clean:
	rm -rf $(VENV) wavs build dist *.egg-info
