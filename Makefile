# statehouse: set-up and the everyday commands. `make` alone lists them.
#
# Each command sets up what it needs, so that `make demo` or `make test` is all it takes on a fresh machine.
# Another Python than python3:  make install PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
# What runs is installed; and what it is tested with.
RUNS := .venv/.runs
INSTALLED := .venv/.installed

JAVA := $${JAVA_HOME:+"$$JAVA_HOME"/bin/}java
# Succeeds for a Java that Spark 4.0 runs on: 17 to 22 (later ones lack Subject.getSubject, which Hadoop calls),
# with the module that Spark asks for (cut-down runtimes lack it).
JAVA_FITS := $(JAVA) --add-modules jdk.incubator.vector -version 2>&1 | \
	awk -F'"' '/ version "/ { split($$2, part, /[^0-9]/); fits = part[1] >= 17 && part[1] < 23 } END { exit !fits }'
AS_ROOT := $$([ "$$(id -u)" = 0 ] || echo sudo -n)

.DEFAULT_GOAL := help
.PHONY: help install java classes demo test nginx chromium postgres law fuzz soak turn chaos s3 docs lint clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9 ]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) java ## Python packages into .venv, and Java 17 where apt-get may install it

java: $(RUNS)
	@if $(JAVA_FITS); then exit 0; fi; \
	if [ -z "$$JAVA_HOME" ] && command -v apt-get >/dev/null && $(AS_ROOT) true 2>/dev/null; then \
		echo "Java 17 is missing: installing it with apt-get (log: .venv/apt.log) ..."; \
		{ $(AS_ROOT) apt-get update; \
		  for version in 17 21; do \
			$(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
				openjdk-$$version-jre-headless && break; \
		  done; } >.venv/apt.log 2>&1; \
		if $(JAVA_FITS); then exit 0; fi; \
	fi; \
	found=$$($(JAVA) -version 2>&1 | awk -F'"' '/ version "/ { print "Java " $$2 }'); \
	echo "statehouse needs Java 17 to 22 with all its modules, found $${found:-none} ($(JAVA)): install one" \
		"(on Debian: apt-get install openjdk-17-jre-headless), and set JAVA_HOME to it if another comes first" >&2; \
	exit 1

$(RUNS): setup.cfg pyproject.toml
	@$(VENV)
	@$(call PACKAGES,demo)
	@touch $@

$(INSTALLED): setup.cfg pyproject.toml
	@$(VENV)
	@$(call PACKAGES,dev)
	@touch $(RUNS) $@

define VENV
if ! command -v "$(PYTHON)" >/dev/null; then \
	echo "statehouse needs Python 3.10 or newer, and there is no $(PYTHON):" \
		"install it, or name another: make install PYTHON=/path/to/python3" >&2; exit 1; \
elif ! "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then \
	echo "statehouse needs Python 3.10 or newer, and $(PYTHON) is $$("$(PYTHON)" --version 2>&1):" \
		"name a newer one: make install PYTHON=/path/to/python3" >&2; exit 1; \
elif ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
	echo "$(PYTHON) cannot make virtual environments:" \
		"on Debian, 'apt-get install python3-venv', then again" >&2; exit 1; \
fi; \
"$(PYTHON)" -m venv .venv
endef

# Install this checkout with the extras $(1) by uv, which takes a third of pip's time; pip fetches it, and does the work where uv fails: pip may
# know of an index that uv does not. What is downloaded is shown on a terminal only.
QUIET := $(shell [ -t 1 ] || echo --quiet)
PACKAGES = uv=$$(command -v uv) || { $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv<1' && uv=$(BIN)/uv; }; \
	if [ -n "$$uv" ] && echo "installing the Python packages into .venv with uv; a minute, the first time ..." && \
		UV_INDEX_URL=$${UV_INDEX_URL:-$$PIP_INDEX_URL} $$uv pip install $(QUIET) --python $(BIN)/python --editable '.[$(1)]'; then :; else \
		echo "installing the Python packages into .venv with pip; a minute or two, the first time ..."; \
		$(BIN)/python -m pip install $(QUIET) --disable-pip-version-check --editable '.[$(1)]'; \
	fi

# Half the time of a start is Spark loading its classes. The archive is in the user's cache, by the versions of Spark and
# Java: it is made for the first checkout only, by the first demo while it runs. Without it everything works as well.
classes: java
	@$(BIN)/python -m demo.classes 2>.venv/classes.log || \
		echo "it could not be made (.venv/classes.log); jobs start without it" >&2

demo: java ## Kafka, simulated agents and tills, the jobs and the API, until Ctrl-C
	@$(BIN)/python -m demo

# docs/nginx is tested under the real one. RUNLEVEL: the package would start a server of its own on port 80.
# What apt-get installs comes one after the other: it has a lock.
NGINX := nginx libnginx-mod-http-lua lua-cjson
nginx: install
	@if dpkg -s $(NGINX) >/dev/null 2>&1; then exit 0; fi; \
	if command -v apt-get >/dev/null && $(AS_ROOT) true 2>/dev/null; then \
		echo "nginx is missing, for its tests: installing it with apt-get (log: .venv/apt-nginx.log) ..."; \
		{ $(AS_ROOT) apt-get update; \
		  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends $(NGINX); \
		} >.venv/apt-nginx.log 2>&1 || echo "it could not be installed: its tests are left out" >&2; \
	fi

# The screens are tested in a real browser.
chromium: install | nginx
	@if command -v chromium >/dev/null; then exit 0; fi; \
	if command -v apt-get >/dev/null && $(AS_ROOT) true 2>/dev/null; then \
		echo "chromium is missing, for its tests: installing it with apt-get (log: .venv/apt-chromium.log) ..."; \
		{ $(AS_ROOT) apt-get update; \
		  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-dejavu-core; \
		} >.venv/apt-chromium.log 2>&1 || echo "it could not be installed: its tests are left out" >&2; \
	fi

# Debezium reads a real PostgreSQL. Debian's package would start a server of its own, which RUNLEVEL keeps it from.
postgres: install | chromium
	@if ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then exit 0; fi; \
	if command -v apt-get >/dev/null && $(AS_ROOT) true 2>/dev/null; then \
		echo "PostgreSQL is missing, for its tests: installing it with apt-get (log: .venv/apt-postgresql.log) ..."; \
		{ $(AS_ROOT) apt-get update; \
		  $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends postgresql; \
		} >.venv/apt-postgresql.log 2>&1 || echo "it could not be installed: its tests are left out" >&2; \
	fi

# One process; JOBS=2: two, each with a Spark session and a Kafka of its own (tests/support/balance.py).
JOBS ?= 1
IN_TWO := $(if $(filter-out 1,$(JOBS)),--numprocesses $(JOBS) --dist loadscope --no-loadscope-reorder)
test: install ## lint, then all tests, each at the smallest size that shows what it holds
	@$(MAKE) --no-print-directory --jobs=3 lint classes nginx chromium postgres
	@$(BIN)/python -m pytest --durations 10 $(IN_TWO)

law fuzz soak: install classes ## the law, the API under fuzzers, and what runs for long, at full size
	@$(BIN)/python -m tests.support.turns $@

turn: install classes ## what is tested at full size today (DAY=17: on the 17th)
	@$(BIN)/python -m tests.support.turns $(DAY)

chaos: install classes ## ten minutes of all that can go wrong at once: poison, slow callers, kill -9 (SECONDS=60 SEED=7)
	@$(BIN)/python -m tests.support.chaos $(SECONDS) $(SEED)

SECONDS ?= 600
SEED ?= 1
COMMA := ,
GATEWAY := .venv/bin/versitygw
$(GATEWAY): | install
	@GOBIN="$$PWD/.venv/bin" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0

s3: install $(GATEWAY) ## a lake on S3, by a gateway on loopback (needs Go; fetches 600 MB)
	@$(call PACKAGES,dev$(COMMA)s3)
	@STATEHOUSE_S3_GATEWAY="$$PWD/$(GATEWAY)" $(BIN)/python -m pytest tests/system/test_s3.py

# It asks no other host, as its reader does not; the banner of its theme is about another version than the pinned one.
docs: $(RUNS) ## the pages as a site with search: build/site/index.html
	@$(BIN)/python -c 'import material' 2>/dev/null || { $(call PACKAGES,docs); }
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "build/site/index.html"

lint: install ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy statehouse jobs api demo

clean: ## removes .venv, caches, build products, and the lake with all its tables
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .schemathesis
	rm -rf lake spark-warehouse metastore_db derby.log
	find . -name .git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +
