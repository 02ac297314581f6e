# A thin list of what there is to do; the work is done by the tools and scripts named here.
# `make` is what should be green before a commit: under a minute, no daemon started.

VENV   = .venv
BIN    = $(VENV)/bin
PREFIX = /usr
DESTDIR =
# With PYTHON, an interpreter that has docutils, the manual pages need no .venv: `make install`.
PYTHON = $(BIN)/python
MAN_NEEDS = $(if $(filter $(BIN)/python,$(PYTHON)),$(VENV)/.gsched-base)
MAN_PAGES = $(patsubst man/%.rst,build/man/%,$(wildcard man/*.[1-8].rst))

.PHONY: check format lint types imports tidy docs-check house quick test integration bench demo man \
	install install-etc clean

check: format lint types imports tidy docs-check house quick

$(VENV)/.gsched-base: pyproject.toml scripts/lib/setup.sh
	bash -c '. scripts/lib/setup.sh && gsched_setup'
	touch $@

format: $(VENV)/.gsched-base
	$(BIN)/ruff format --check

lint: $(VENV)/.gsched-base
	$(BIN)/ruff check

types: $(VENV)/.gsched-base
	$(BIN)/mypy

imports: $(VENV)/.gsched-base
	$(BIN)/lint-imports

tidy: $(VENV)/.gsched-base
	$(BIN)/python scripts/tidy.py

docs-check: $(VENV)/.gsched-base
	$(BIN)/python scripts/check_docs.py

house: $(VENV)/.gsched-base
	$(BIN)/python -m scripts.reproduce.house_main --check

# What needs no daemon.
quick: $(VENV)/.gsched-base
	$(BIN)/python -m pytest -q -n 2 tests/unit tests/contract tests/scenario tests/docs

test:
	scripts/test

integration:
	scripts/test tests/system tests/cli

bench:
	for script in $(filter-out %.py %.md %__pycache__,$(wildcard scripts/bench/*)); do $$script || exit 1; done

demo:
	scripts/demo

man: $(MAN_PAGES)

build/man/%: man/%.rst $(MAN_NEEDS)
	mkdir -p build/man
	$(PYTHON) -m docutils --writer manpage $< $@

# The programs come with `pip install .`; this installs what pip does not.
install-etc:
	scripts/lib/install-etc "$(DESTDIR)" "$(PREFIX)"

install: install-etc man
	for page in $(MAN_PAGES); do \
		install -D -m 644 $$page \
			$(DESTDIR)$(PREFIX)/share/man/man$${page##*.}/$${page##*/} || exit 1; \
	done

clean:
	rm -rf build .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
