# qgpu: `make demo` and `make test` are the two commands; each sets up whatever is missing first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

VENV    ?= .venv
PY      := $(VENV)/bin/python
BUILD   := build
CC      ?= gcc
# Of the pinned wheels (packaging/python/headers.lock).
CUDA_INC ?= $(BUILD)/headers
NVML_INC ?= $(BUILD)/headers
VERSION := $(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' gres/version.py)
CFLAGS  ?= -O2 -g
# Where it was built is in no file: two builds are equal.
override CFLAGS += -ffile-prefix-map=$(CURDIR)=.
QG_CFLAGS := -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -fPIC -fstack-protector-strong \
             -fno-strict-aliasing -Ienforcer/native/abi -Ienforcer/native/common \
             -DQG_VERSION='"$(VERSION)"' \
             $(if $(SLURM_INC),-isystem $(SLURM_INC))
QG_LDFLAGS := -Wl,-z,relro,-z,now -Wl,--as-needed
# What enters users' programs loads with an old glibc (qg_glibc.h). Until 2.34 threads and dlopen()
# were libraries of their own.
QG_OLD_GLIBC := -include enforcer/native/common/qg_glibc.h
QG_OLD_LIBS := -Wl,--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--pop-state
# Only where compiler and linker can do it; asked once, when first needed.
QG_LTO = $(eval QG_LTO := $(shell echo 'int main(void) { return 0; }' | $(CC) -flto=auto -x c - \
         -o /dev/null 2>/dev/null \
         && echo -flto=auto))$(QG_LTO)

.PHONY: all setup headers native layouts test test-matrix test-install test-frameworks retest \
    demo bench gpu \
    gpu-bundle format lint lint-ansible clean help
all: setup native

# Each native part brings its own build.mk, which adds its products to NATIVE.
NATIVE :=
# Test programs of the suite that runs on every version of Slurm (cli/sandbox/versions/matrix.py).
LIVE_TESTS := $(BUILD)/test/spank_stage $(BUILD)/test/spank_escape
include $(sort $(wildcard enforcer/native/*/build.mk slurm_plugin/*/build.mk gres/native/build.mk \
  simulator/native/build.mk simulator/native/*/build.mk bench/*/build.mk))
include packaging/install.mk packaging/package.mk
BUILT_BY = tools/rules.sh $(BUILD) "$(CC)" \
           "$(sort $(CFLAGS)) $(SLURM_INC) $(VERSION) $(HW) $(SIM_RUNTIME)" \
           $(MAKEFILE_LIST)

help:
	@echo "make demo         set up, bring up a private Slurm with simulated cards, run the main" \
	  "job, tear down"
	@echo "make demo KEEP=1  the same, but leave the cluster up and say how to enter it"
	@echo "make test         set up and run every test"
	@echo "make test-matrix  run the live suite on each of three versions of Slurm"
	@echo "make test-frameworks PyTorch, CuPy, JAX and Numba on the simulated driver (19 GB)"
	@echo "make test-install the packages on hosts with a systemd: Debian 12 and 13 (SUITES=bookworm)"
	@echo "make bench        at most 15 minutes: one line per figure, and build/bench.json"
	@echo "make gpu          on a machine with a card, without network or Slurm: run the whole set" \
	  "(SIM=1: on the simulator)"
	@echo "make gpu-bundle   make build/gpu-bundle, which that machine needs if it has no network"
	@echo "make lint         ruff, mypy, layering and size rules"
	@echo "make format       C and Python in the one style"
	@echo "make layouts      write the Python mirrors of the C headers, and the table of constants"
	@echo "make lint-ansible ansible-lint over packaging/ansible"
	@echo "make native       build the C parts into build/, those of the tests included"
	@echo "make native HW=0  the same, without hardware preemption"
	@echo "make native SIM_RUNTIME=0  the same; NVIDIA's runtime then refuses the simulated driver"
	@echo "make product      build what is installed, and only that"
	@echo "make deb          Debian packages into build/packages/ (make rpm: for EL 9; make dist:" \
	  "the source archive)"
	@echo "make test-packages build the packages twice, compare, and try them in an old Debian"
	@echo "make install      install it: DESTDIR, PREFIX and the other directories of" \
	  "packaging/install.mk"

setup: $(BUILD)/.setup

$(BUILD)/.setup: tools/setup.sh pyproject.toml
	@tools/setup.sh $(VENV)
	@mkdir -p $(BUILD) && touch $@

native: setup headers
	@flock $(BUILD)/.native.lock $(BUILT_BY)
	@$(MAKE) --no-print-directory -q native-products 2>/dev/null \
	  || echo "building the native parts into $(BUILD)/"
	@flock $(BUILD)/.native.lock $(MAKE) --no-print-directory -s native-products
	@$(PY) tools/floors.py $(BUILD)

.PHONY: native-products native-live
native-products: $(NATIVE)

# The part that the live suite needs: in the tree of another Slurm nothing else is built.
native-live: setup headers
	@flock $(BUILD)/.native.lock $(BUILT_BY)
	@flock $(BUILD)/.native.lock $(MAKE) --no-print-directory -s \
	  $(filter-out $(BUILD)/test/% $(BUILD)/lib/pam_qgpu.so,$(NATIVE)) $(LIVE_TESTS)

# Most tests wait, so more of them run at a time than there are cores. Each worker has a sandbox of
# its own. HYPOTHESIS_PROFILE=deep tries four times as many examples.
# Byte code is kept, else each worker and each program that a test starts would compile everything
# anew.
WORKERS ?= 5
PYTEST  := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/$(BUILD)/pycache $(PY) \
           -m pytest
test: native product
	@$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The live suite on every version of Slurm that a sandbox can have; the machine's own is in
# `make test` already.
test-matrix: native
	@$(PY) -m cli.sandbox.versions.matrix

# Unmodified PyTorch, CuPy, JAX and Numba on the simulated driver. Their environments, some 19 GB,
# are made once, outside the checkout (tools/frameworks.sh). AGAIN=1: what failed in the last run.
test-frameworks: native
	@tools/frameworks.sh
	@$(PYTEST) -m frameworks tests/frameworks $(wildcard tests/slurm/node/test_torch_*.py) \
	  $(if $(AGAIN),--last-failed --last-failed-no-failures none)

# The packages, installed by the commands of docs/install.md, on containers with a real systemd and
# a stock Slurm.
SUITES ?= bookworm trixie
test-install: setup $(BUILD)/ansible/.complete
	@PYTHONPATH=tests/install $(PY) -m harness --suites "$(SUITES)" \
	  $(if $(SECONDS_LEFT),--again --seconds $(SECONDS_LEFT))

# The tests that failed in the last run, once more.
retest: native
	@$(PYTEST) --last-failed --last-failed-no-failures none

# A processor that sleeps wakes late where the host of a virtual machine is busy, and the demo
# measures (docs/measurements/README.md).
demo: native
	@exec 3> >($(BUILD)/test/keep-awake); $(PY) -m cli.main demo $(if $(KEEP),--keep) 3>&-

bench: native
	@$(PY) -m bench --json $(BUILD)/bench.json

# On a machine with a card; neither setup nor network (docs/measurements/README.md).
# PART="works shares" ONLY=word QUICK=1 BUDGET=seconds AGAIN=1 LIST=1 SIM=1 choose; the same command
# again goes on where the last one stopped.
gpu:
	@bench/gpu/make.sh $(if $(SIM),--sim) $(if $(QUICK),--quick) $(if $(AGAIN),--again) \
	  $(if $(LIST),--list) $(PART:%=--part %) $(if $(ONLY),--only "$(ONLY)") \
	  $(if $(BUDGET),--budget $(BUDGET)) $(if $(RESULTS),--results $(RESULTS))

gpu-bundle: native
	@bench/gpu/bundle.sh $(PYTHONS)

# Every C and Python file in the one style (.clang-format, ruff).
format: setup
	@git ls-files '*.c' '*.h' | xargs $(VENV)/bin/clang-format -i
	@$(VENV)/bin/ruff format -q .

# The Python mirrors of our C headers: which header becomes which module is in tools/layouts.py.
# And docs/specs/constants.md, of the comments before the constants of scheduling.
layouts: setup
	@$(PY) tools/layouts.py
	@$(PY) tools/constants.py

# The Ansible role, by ansible-lint's rules for production. Its tools have an environment of their
# own.
ANSIBLE := $(BUILD)/ansible
$(ANSIBLE)/.complete: packaging/ansible/requirements.txt
	@rm -rf $(ANSIBLE) && python3 -m venv $(ANSIBLE)
	@$(ANSIBLE)/bin/pip install -q --disable-pip-version-check -r $<
	@touch $@

lint-ansible: $(ANSIBLE)/.complete
	@cd packaging/ansible && PATH=$(abspath $(ANSIBLE))/bin:$$PATH \
	  ANSIBLE_HOME=$(abspath $(ANSIBLE))/home \
	  ansible-lint --offline --profile production -q

lint: setup
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@git ls-files '*.c' '*.h' | xargs $(VENV)/bin/clang-format --dry-run -Werror
	@$(VENV)/bin/mypy
	@$(VENV)/bin/mypy packaging/python packaging/completion.py
	@$(PY) tools/layers.py
	@$(PY) tools/layouts.py --check
	@$(PY) tools/constants.py --check
	@$(PY) tools/doclines.py
	@$(PY) tools/doclinks.py
	@$(PY) tools/docnames.py

clean:
	rm -rf $(BUILD)
