# Two commands matter: `make lab` to learn, `make test` to check. `make` alone lists them all.
# Works with the make of Linux and of macOS (GNU make 3.81), and in folders whose path contains spaces.

LAB = .venv/bin/python
TEST = .venv-test/bin/python

# What notebooks and measurements run on: one thread, so that numbers do not depend on how many cores there are.
ONE_THREAD = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# For the benchmark: glibc gives freed memory back to the system and fetches it anew, and a pass that keeps something
# alive spares it that; without these settings recording looks faster than not recording.
KEEP_MEMORY = MALLOC_TRIM_THRESHOLD_=2000000000 MALLOC_MMAP_THRESHOLD_=2000000000
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout=240 --nbval-kernel-startup-timeout=120 \
        --nbval-sanitize-with tests/sanitize.cfg
ALL = -n 2 --dist loadfile --no-loadscope-reorder $(NBVAL) tests headtools recipes notebooks tools

.PHONY: help lab test test-all check lint bench organism results notebooks assignments cards site live picture measure sbom lock clean environment environment-test
.DEFAULT_GOAL := help

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-12s %s\n", $$1, $$2}' Makefile

lab: environment ## open the course in JupyterLab   (TORCH=cpu, PYTHON=..., LAB_ARGS="--port 9999")
	@sh tools/lab.sh $(LAB_ARGS)

test: lint ## run lint, unit tests, doctests and all lessons   (about ten minutes on two cores; ARGS="-k gates")
	$(ONE_THREAD) HEADTOOLS_LAWS=half $(TEST) -m pytest -m "not full and not weekly" $(ALL) $(ARGS)

test-all: lint ## run these and what takes longer: JupyterLab and the site in a browser, grading   (.ci/run does)
	$(ONE_THREAD) $(TEST) -m pytest -m "not weekly" $(ALL) $(ARGS)

check: lint ## lint, and the quick tests of the package: no notebook, no browser   (a minute on two cores)
	$(ONE_THREAD) HEADTOOLS_LAWS=half $(TEST) -m pytest -p no:nbval -q -n 2 -m "not slow and not full and not weekly" tests/engine tests/heads tests/importance tests/roles tests/geometry tests/sparse headtools $(ARGS)

lint: environment-test ## check the style of the code
	$(TEST) -m ruff check .

bench: environment-test ## measure what everything costs, on one thread   (ARGS="--quick", ARGS=--peers, ARGS="--only gradient")
	$(if $(findstring peers,$(ARGS))$(findstring comparison,$(ARGS)),sh tools/peers.sh $(TEST))
	$(ONE_THREAD) $(KEEP_MEMORY) $(TEST) tools/bench/run.py $(ARGS)

organism: environment ## train the shipped model again, from nothing   (SEED=2, SIZE=half, SIZE=double)
	$(LAB) -m recipes.train $(if $(SEED),--seed $(SEED)) $(if $(SIZE),--size $(SIZE)) $(ARGS)

results: environment ## measure a table of the shipped model again, or a real model   (TABLE=sweep ARGS="--jobs 2"; MODEL=smollm2; the list)
	$(if $(MODEL),$(ONE_THREAD) $(LAB) -m recipes.$(if $(filter whisper,$(MODEL)),whisper,measure_real --model $(MODEL)) $(ARGS))
	$(if $(MODEL),,$(if $(TABLE),$(ONE_THREAD) $(LAB) -m recipes.$(TABLE) $(ARGS),@$(LAB) -c "import recipes; print(recipes.__doc__)"))

notebooks: environment-test ## run all notebooks and keep their outputs
	$(ONE_THREAD) $(TEST) tools/execute_notebooks.py $(ARGS)

assignments: environment-test ## make a folder to hand out and grade problem sets   (ARGS="--out FOLDER --variant 7")
	$(TEST) tools/hand_out.py $(ARGS)

cards: environment-test ## make cards to learn by heart, for Anki, build/headtools.apkg
	$(TEST) tools/make_cards.py $(ARGS)

site: environment-test ## make the course's site, build/site/index.html
	$(TEST) tools/make_site.py $(ARGS)

live: environment-test ## make the live page alone, build/live/index.html, which opens from disk
	$(ONE_THREAD) $(TEST) tools/make_live_page.py $(ARGS)

picture: environment-test ## make the README's moving picture, from the live page, and the pictures above the lessons
	$(ONE_THREAD) $(TEST) tools/make_headers.py
	$(ONE_THREAD) $(TEST) tools/make_picture.py $(ARGS)

measure: environment-test ## measure minutes and memory of each lesson, write them where they are told
	$(ONE_THREAD) $(TEST) tools/measure_notebooks.py $(ARGS)

sbom: environment environment-test ## write build/sbom.json: every package that learners install, its version and licence
	mkdir -p build && $(TEST) -m uv pip install -q --python $(TEST) -r pyproject.toml --extra weekly -c constraints.txt && $(TEST) -m cyclonedx_py environment --pyproject pyproject.toml --output-file build/sbom.json $(LAB)

lock: environment-test ## write the locks: the versions of constraints.txt with the digests of all their files
	sh tools/lock.sh $(TEST)

clean: ## remove what these commands made, environments included
	rm -rf .venv .venv-test .venv-peers build headtools.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -prune -exec rm -rf {} +

environment:
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh tools/environment.sh .venv requirements-course.lock

environment-test:
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" sh tools/environment.sh .venv-test requirements.lock
