# Every target makes the environment it needs. PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
VENV   ?= .venv
DESIGN ?= smartssd_ku15p
OUT    ?= out
BIN    := $(VENV)/bin

export AMARANTH_USE_YOSYS := builtin
export PYTHONHASHSEED := 0

.PHONY: setup demo test test-slow lint rtl sim synth pnr faults waves validate bench bench-policies docs clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.base

$(VENV)/.base: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nearkv needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e .
	touch $@

$(VENV)/.%: pyproject.toml $(VENV)/.base
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$*]'
	touch $@

demo: $(VENV)/.base        ## hot/cold tiers over a real model's keys, on the fast model and on compiled RTL
	@echo 'The first run compiles the RTL: about a minute of CPU time, once.'
	rm -rf $(OUT)/demo
	$(BIN)/nearkv run configs/demo.yaml --compare tlm,rtl --output $(OUT)/demo

test: $(VENV)/.test        ## everything but the slow tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow'

test-slow: $(VENV)/.slow   ## tests that need torch and transformers
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.lint $(VENV)/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

rtl: $(VENV)/.base         ## Verilog of DESIGN, test vectors and a plain Verilog testbench
	@$(BIN)/nearkv designs '$(DESIGN)' > /dev/null  # a name that is none deletes nothing
	rm -rf $(OUT)/rtl/$(DESIGN)
	$(BIN)/nearkv rtl --design $(DESIGN) -o $(OUT)/rtl/$(DESIGN)

sim: $(VENV)/.test         ## every bench: RTL, buses, PCIe; on Icarus, too, where it is installed; all faults, all cycles
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/sim tests/rtl tests/bus tests/migrate tests/pcie_rtl tests/pcie
	NEARKV_ALL_FAULTS=1 NEARKV_ALL_CYCLES=1 $(BIN)/python -m pytest tests/pcie/test_fault_matrix.py tests/pcie/test_cycles.py

faults: $(VENV)/.test      ## the whole fault matrix, and its page: minutes
	$(BIN)/python docs/faults.py

synth: $(VENV)/.synth      ## LUT, FF, DSP and BRAM of every named design
	rm -rf $(OUT)/synth $(OUT)/synth_key_scorer
	$(BIN)/nearkv synth --output $(OUT)/synth
	$(BIN)/nearkv synth --unit key_scorer --design tiny smartssd_ku15p --output $(OUT)/synth_key_scorer

pnr: $(VENV)/.pnr          ## Fmax, utilisation and bitstream of the 64-lane scorer on ECP5, best of 5 seeds
	rm -rf $(OUT)/pnr
	$(BIN)/nearkv pnr --query-group 1 --output $(OUT)/pnr

waves: $(VENV)/.test       ## one bench with a waveform file
	rm -rf $(OUT)/waves
	$(BIN)/nearkv waves --output $(OUT)/waves

validate: $(VENV)/.base    ## every hardware model against published figures
	$(BIN)/nearkv validate

bench: $(VENV)/.test       ## speeds, as ratios measured in one run
	$(BIN)/python -m benchmarks

bench-policies: $(VENV)/.test  ## policies on a whole trace: make bench-policies TRACE=FILE MODEL=FILE.gguf TEXT=FILE
	mkdir -p $(OUT)
	$(BIN)/python -m benchmarks.policy_quality $(TRACE) --model $(MODEL) --text $(TEXT) --output $(OUT)/policy-quality.json

docs: $(VENV)/.synth       ## the generated tables and plots in docs/
	$(BIN)/python docs/generate.py && $(BIN)/python docs/validation.py && $(BIN)/python docs/claims.py

clean:
	rm -rf $(OUT) build .pytest_cache .mypy_cache .ruff_cache
