# make demo: from nothing to a trained network and its retrieval page. make test: the suite. Both set up what they need.
PYTHON ?= python3
BIN := .venv/bin
# One process per core, and one thread in each and in what it starts: more wait for each other. The tests of a file stay
# together, as they share what their fixtures make.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder
# The folder of the demo, as its config has it.
override OUT := output/demo
DATA := $(OUT)/data

# Nothing is written to the home folder. Byte code stays where pip compiles it, beside what it installs: commands that are
# typed outside of make find it there.
export MPLCONFIGDIR := $(CURDIR)/.venv/matplotlib

.PHONY: demo test test-all check format site gallery bench fuzz golden clean

.venv/.installed: setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --progress-bar on --editable .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/.installed
	$(BIN)/python -m vidssl train --cfg configs/demo/sce.yaml output=$(OUT)/run
	for labels in motion colour; do \
	  $(BIN)/python -m vidssl retrieval --checkpoint $(OUT)/run/checkpoints/last.pt \
	    --gallery $(DATA)/$$labels/train.csv --query $(DATA)/$$labels/test.csv --out $(OUT)/trained/$$labels || exit 1; \
	done
	$(BIN)/python -m vidssl compare $(DATA)/motion/test.csv --labels $(DATA)/colour/test.csv --cfg configs/demo/sce.yaml \
	  --checkpoint random $(OUT)/run --shots 5 --out $(OUT)/compare

# The tests that take seconds each; test-all, which CI runs, adds those that take longer, and after them, one at a time, those
# that measure memory or time.
ALONE = $(shell grep -rlF mark.alone tests --include='test_*.py')
test: .venv/.installed-dev
	$(PYTEST) -m "not long"

test-all: .venv/.installed-dev
	$(PYTEST) -m "not alone"
	$(BIN)/python -m pytest -m alone $(ALONE)

check: .venv/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python tests/budget.py

format: .venv/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a static site: site/index.html. Search needs a server: python -m http.server --directory site
.venv/.installed-docs: .venv/.installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

site: .venv/.installed-docs
	$(BIN)/python docs/builder/build.py

# Runs the examples of the gallery, minutes, and stores the images that the site shows.
gallery: .venv/.installed
	$(BIN)/python docs/builder/run_gallery.py

# Side by side with other libraries: make bench VIDEOS=/folder/of/videos
bench: .venv/.installed-dev
	@test -n "$(VIDEOS)" || { echo "make bench VIDEOS=FOLDER: name a folder of videos to make the clips from"; exit 2; }
	$(BIN)/python benchmarks/decode.py --videos "$(VIDEOS)" --json output/bench/decode.json
	$(BIN)/python benchmarks/augment.py --json output/bench/augment.json
	$(BIN)/python benchmarks/loader.py --videos "$(VIDEOS)" --json output/bench/loader.json
	$(BIN)/python benchmarks/lists.py --json output/bench/lists.json
	$(BIN)/python benchmarks/losses.py --json output/bench/losses.json
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python benchmarks/retrieval.py --json output/bench/retrieval.json
	$(BIN)/python benchmarks/train_step.py --json output/bench/train_step.json
	$(BIN)/python benchmarks/tracker.py --json output/bench/tracker.json
	$(BIN)/python benchmarks/methods.py --json output/bench/methods.json
	$(BIN)/python benchmarks/inter.py --json output/bench/inter.json
	$(BIN)/python benchmarks/svm.py --json output/bench/svm.json

# Reads damaged files of all kinds, new ones until the time is over; the smallest form of each that fails is kept.
MINUTES ?= 30
fuzz: .venv/.installed-dev
	$(BIN)/python tests/faults/fuzz.py --minutes $(MINUTES) --seed $$(date +%s) --out output/fuzz

golden: .venv/.installed-dev
	$(BIN)/python tests/engine/golden.py

clean:
	rm -rf output site .mypy_cache .ruff_cache .pytest_cache
