# SPDX-License-Identifier: Apache-2.0
# `make product` builds what is installed, `make install` is the one place that says where each file
# goes. deb and rpm call it once per package (COMPONENT=...). Neither needs the development
# environment in .venv.
PREFIX          ?= /usr/local
BINDIR          ?= $(PREFIX)/bin
SBINDIR         ?= $(PREFIX)/sbin
LIBDIR          ?= $(PREFIX)/lib
LIBEXECDIR      ?= $(PREFIX)/libexec
DATADIR         ?= $(PREFIX)/share
MANDIR          ?= $(DATADIR)/man
SYSCONFDIR      ?= /etc
RUNDIR          ?= /run/qgpu
STATEDIR        ?= /var/lib/qgpu
UNITDIR         ?= $(PREFIX)/lib/systemd/system
TMPFILESDIR     ?= $(PREFIX)/lib/tmpfiles.d
BASHDIR         ?= $(DATADIR)/bash-completion/completions
ZSHDIR          ?= $(DATADIR)/zsh/site-functions
SLURM_CONFDIR   ?= $(SYSCONFDIR)/slurm
SLURM_PLUGINDIR ?= $(firstword $(wildcard /usr/lib/*-linux-gnu/slurm-wlm \
                   /usr/lib64/slurm /usr/lib/slurm) $(LIBDIR)/slurm)
PAMDIR          ?= $(firstword $(wildcard /usr/lib/*-linux-gnu/security /usr/lib64/security) \
                   $(LIBDIR)/security)
# The simulated cards' sockets and device files, as libcuda.so.1 of qgpu-simulator looks for them.
SIMDIR          := /var/lib/qgpu-sim
# Where the loader's configuration lies.
LOADERDIR        = $(SYSCONFDIR)/ld.so.conf.d

COMPONENTS := qgpu node controller slurm-plugins simulator
COMPONENT  ?= $(COMPONENTS)
# The Python that runs qgpu on the target, and all versions of it that the environment serves.
PYTHON     ?= /usr/bin/python3
PYTHONS    := 3.11 3.12 3.13
PYTHON3    ?= python3
ABI_VERSION := $(shell sed -n 's/^\#define QG_ABI_VERSION  *\([0-9][0-9]*\).*/\1/p' \
               enforcer/native/abi/qgpu_abi.h)
export PYTHON3 CC SLURM_INC NATIVE_GRES

# ---- build ----
PRODUCT_NATIVE := bin/qgpu-arbiter bin/qgpu-checkpoint bin/qgpu-hook bin/qgpu-mounts \
                  bin/qgpu-simulate bin/qgpu-simgpu bin/qgpu-workload \
                  shim/libcuda.so.1 shim/libnvidia-ml.so.1 \
                  sim/libcuda.so.1 sim/libnvidia-ml.so.1 lib/qgpu_spank.so lib/pam_qgpu.so
SITE    := $(BUILD)/product/site
OUR_PY   = $(shell find gres slurm_plugin enforcer simulator cli configs -type f -not -name '*.pyc')
COMPLETIONS := $(BUILD)/product/qgpu.bash $(BUILD)/product/_qgpu

.PHONY: product product-files wheels lock install $(COMPONENTS:%=install-%)
product:
	@packaging/need.sh product
	@$(MAKE) --no-print-directory -s headers
	@flock $(BUILD)/.native.lock $(BUILT_BY)
	@flock $(BUILD)/.native.lock $(MAKE) --no-print-directory -s product-files

headers:
	@mkdir -p $(BUILD) && flock $(BUILD)/.native.lock $(MAKE) --no-print-directory -s \
	  $(BUILD)/headers/.complete
$(BUILD)/headers/.complete: packaging/python/headers.lock packaging/python/fetch.sh \
    packaging/python/environment.py
	packaging/python/fetch.sh $< $(BUILD)/wheels/headers 3.11
	$(PYTHON3) packaging/python/environment.py headers $(BUILD)/wheels/headers $(@D)
	touch $@

# What enters users' programs; the simulated driver wants memfd_create(2).
FOR_USERS     := shim/libcuda.so.1 shim/libnvidia-ml.so.1
FOR_USERS_SIM := sim/libcuda.so.1 sim/libnvidia-ml.so.1 bin/qgpu-workload

product-files: $(PRODUCT_NATIVE:%=$(BUILD)/%) $(SITE)/.complete $(COMPLETIONS) \
    $(BUILD)/product/.glibc

$(BUILD)/product/.glibc: packaging/glibc.py $(FOR_USERS:%=$(BUILD)/%) $(FOR_USERS_SIM:%=$(BUILD)/%)
	@mkdir -p $(@D)
	$(PYTHON3) $< 2.17 $(FOR_USERS:%=$(BUILD)/%)
	$(PYTHON3) $< 2.28 $(FOR_USERS_SIM:%=$(BUILD)/%)
	touch $@

wheels: $(BUILD)/wheels/site/.complete
$(BUILD)/wheels/site/.complete: packaging/python/requirements.lock packaging/python/fetch.sh
	packaging/python/fetch.sh $< $(@D) $(PYTHONS)

# The environment is unpacked from the wheels, never installed by pip: no scripts, no records of
# times and paths.
$(SITE)/.complete: $(BUILD)/wheels/site/.complete packaging/python/environment.py $(OUR_PY)
	$(PYTHON3) packaging/python/environment.py site $(<D) . $(BUILD)/product/site.new
	rm -rf $(SITE) && mv $(BUILD)/product/site.new $(SITE) && touch $@

$(BUILD)/product/qgpu.bash $(BUILD)/product/_qgpu: $(SITE)/.complete packaging/completion.py
	$(PYTHON3) -ISB packaging/completion.py $(SITE) $(if $(filter %.bash,$@),bash,zsh) >$@

# The newest versions that pyproject.toml allows.
lock: setup
	@$(PY) packaging/python/lock.py packaging/python/requirements.lock $(PYTHONS) -- \
	  $$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"] \
	  ["dependencies"])')

# ---- install ----
# The directories that launchers and units name, filled in by one rule; gres/paths.py knows them by
# the same words.
PATH_WORDS = bin_dir=$(BINDIR) sbin_dir=$(SBINDIR) lib_dir=$(LIBDIR)/qgpu \
             libexec_dir=$(LIBEXECDIR)/qgpu data_dir=$(DATADIR)/qgpu \
             config_dir=$(SYSCONFDIR)/qgpu slurm_config_dir=$(SLURM_CONFDIR) \
             slurm_plugin_dir=$(SLURM_PLUGINDIR) run_dir=$(RUNDIR) state_dir=$(STATEDIR) \
             unit_dir=$(UNITDIR)
# systemd makes what lies below /run and /var/lib; elsewhere the units may write, and tmpfiles.d
# makes it.
# $(call below,DIRECTORY,PARENT,KEY)
below = $(if $(filter $(2)/%,$(1)),$(3)=$(patsubst $(2)/%,%,$(1)),ReadWritePaths=$(1))
UNIT_WORDS = runtime_directory=$(call below,$(RUNDIR),/run,RuntimeDirectory) \
             state_directory=$(call below,$(STATEDIR),/var/lib,StateDirectory) \
             sim_dir=$(SIMDIR) version=$(VERSION)
key_of = $(firstword $(subst =, ,$(1)))
FILL = sed $(foreach word,$(PATH_WORDS) $(UNIT_WORDS),-e \
       's|@$(call key_of,$(word))@|$(patsubst $(call key_of,$(word))=%,%,$(word))|g')
# $(call put,MODE,FILES,DIRECTORY); $(call fill,MODE,TEMPLATE,FILE)
put  = install -d -m 755 $(DESTDIR)$(3) && install -m $(1) $(2) $(DESTDIR)$(3)/
fill = install -d -m 755 $(DESTDIR)$(dir $(3)) && $(FILL) $(2) >$(DESTDIR)$(3) \
       && chmod $(1) $(DESTDIR)$(3)
# $(call units,NAMES)
units = $(foreach unit,$(1),$(call fill,644,configs/systemd/$(unit).in,$(UNITDIR)/$(unit)) &&) true

LUA_CONTROLLER := $(addprefix slurm_plugin/lua/qgpu_,job_submit.lua options.lua cards.lua \
                    bounds.lua host.lua whole.lua)
LUA_COMMON     := $(filter-out $(LUA_CONTROLLER),$(sort $(wildcard slurm_plugin/lua/*.lua)))

# make and sed cannot carry these in a path, and half a path must never be written to.
ODD := | & ; < > ( ) \ * ? " ' `
odd = $(filter-out 0 1,$(words $($(1))))$(foreach char,$(ODD),$(findstring $(char),$($(1))))
PLACES := DESTDIR PREFIX BINDIR SBINDIR LIBDIR LIBEXECDIR DATADIR MANDIR SYSCONFDIR RUNDIR \
          STATEDIR UNITDIR TMPFILESDIR BASHDIR ZSHDIR \
          SLURM_CONFDIR SLURM_PLUGINDIR PAMDIR PYTHON NATIVE_GRES
refuse_odd = $(foreach place,$(PLACES),$(if $(strip $(call odd,$(place))),$(error \
             make install: $(place) is '$($(place))': a path with spaces \
             or one of $(ODD) cannot be installed to)))

install: product
	$(refuse_odd)
	@for word in $(PATH_WORDS) python=$(PYTHON); do case $$word in *=/*) ;; \
	  *) echo "make install: $$word must be an absolute path" >&2; exit 1 ;; esac; done
	@umask 022; $(MAKE) --no-print-directory -s $(COMPONENT:%=install-%)
	@if [ -z "$(DESTDIR)" ]; then $(LIBDIR)/qgpu/python/bin/python3 -I -m compileall -q \
	  $(LIBDIR)/qgpu/python/site-packages; fi

install-qgpu:
	$(PYTHON3) packaging/python/environment.py install $(SITE) $(DESTDIR)$(LIBDIR)/qgpu/python \
	  $(PYTHON) $(PYTHONS) $(PATH_WORDS)
	rm -f $(DESTDIR)$(LIBDIR)/qgpu/python/site-packages/.complete
	$(call fill,755,packaging/launchers/qgpu.in,$(BINDIR)/qgpu)
	$(call put,755,$(BUILD)/bin/qgpu-simulate,$(LIBEXECDIR)/qgpu)
	$(call put,644,$(LUA_COMMON),$(DATADIR)/qgpu/lua)
	$(call put,644,configs/examples/qgpu.yaml configs/examples/simulate.yaml \
	  packaging/ondemand/qgpu_cards.rb,$(DATADIR)/qgpu/examples)
	$(call fill,644,docs/man/qgpu.1,$(MANDIR)/man1/qgpu.1)
	$(call fill,644,docs/man/qgpu.yaml.5,$(MANDIR)/man5/qgpu.yaml.5)
	$(call put,644,$(BUILD)/product/_qgpu,$(ZSHDIR))
	install -d -m 755 $(DESTDIR)$(BASHDIR) $(DESTDIR)$(SYSCONFDIR)/qgpu
	install -m 644 $(BUILD)/product/qgpu.bash $(DESTDIR)$(BASHDIR)/qgpu

install-node:
	$(call fill,755,packaging/launchers/qgpud.in,$(SBINDIR)/qgpud)
	$(call put,755,$(addprefix $(BUILD)/bin/,qgpu-arbiter qgpu-checkpoint \
	  qgpu-hook qgpu-mounts),$(LIBEXECDIR)/qgpu)
	$(call put,644,$(BUILD)/shim/libcuda.so.1 \
	  $(BUILD)/shim/libnvidia-ml.so.1,$(LIBDIR)/qgpu/$(ABI_VERSION))
	$(call put,644,$(BUILD)/lib/pam_qgpu.so,$(PAMDIR))
	$(call fill,644,docs/man/qgpud.8,$(MANDIR)/man8/qgpud.8)
	$(call fill,644,docs/man/qgpu-arbiter.8,$(MANDIR)/man8/qgpu-arbiter.8)
	$(call units,qgpu.slice qgpud.service qgpu-arbiter.service)
	$(call fill,644,configs/systemd/qgpu.tmpfiles.in,$(TMPFILESDIR)/qgpu.conf)

install-controller:
	$(call put,644,$(LUA_CONTROLLER),$(DATADIR)/qgpu/lua)
	$(call units,qgpu-collect.service qgpu-collect.timer qgpu-extend.service qgpu-extend.timer \
	  qgpu-guard.service qgpu-guard.timer)

# NATIVE_GRES=DIRECTORY: also the native GRES plugins that `make -C gres/native SLURM_SRC=...` built
# there.
install-slurm-plugins:
	$(call put,644,$(BUILD)/lib/qgpu_spank.so,$(LIBDIR)/qgpu)
	$(if $(NATIVE_GRES),$(call put,644,$(NATIVE_GRES)/gres_qgpu.so \
	  $(NATIVE_GRES)/gres_vram.so,$(SLURM_PLUGINDIR)))

install-simulator:
	$(call put,755,$(BUILD)/bin/qgpu-simgpu $(BUILD)/bin/qgpu-workload,$(LIBEXECDIR)/qgpu)
	$(call put,644,$(BUILD)/sim/libcuda.so.1 $(BUILD)/sim/libnvidia-ml.so.1,$(LIBDIR)/qgpu/sim)
	$(call units,qgpu-simgpu.service)
	$(call fill,644,configs/systemd/qgpu-simulator.ld.in,$(LOADERDIR)/qgpu-simulator.conf)
