# SPDX-License-Identifier: Apache-2.0
# Source archive and packages, all into build/packages/.
PACKAGES := $(BUILD)/packages
REVISION ?= 1

.PHONY: dist deb lint-deb rpm lint-rpm test-packages
dist:
	@packaging/dist.sh $(VERSION) $(PACKAGES)/qgpu-$(VERSION).tar.gz \
	  && echo $(PACKAGES)/qgpu-$(VERSION).tar.gz

deb:
	@packaging/need.sh product deb lint-deb
	@packaging/deb.sh $(VERSION) $(REVISION) $(PACKAGES)
	@$(MAKE) --no-print-directory -s lint-deb

lint-deb:
	@packaging/need.sh lint-deb
	@lintian --fail-on error,warning --tag-display-limit 0 $(PACKAGES)/qgpu*.deb

rpm:
	@packaging/need.sh product rpm lint-rpm
	@packaging/rpm.sh $(VERSION) $(REVISION) $(ABI_VERSION) "$(LUA_COMMON)" "$(LUA_CONTROLLER)" \
	  $(PACKAGES)
	@$(MAKE) --no-print-directory -s lint-rpm

lint-rpm:
	@packaging/need.sh lint-rpm
	@rpmlint --config packaging/rpm/rpmlint.toml --strict $(wildcard $(PACKAGES)/qgpu*.rpm)

# Builds both kinds, twice, and runs programs in an old C library: minutes, and the network once.
test-packages: native product
	@packaging/need.sh deb lint-deb rpm lint-rpm
	@$(PY) -m pytest -m packages tests/packaging
