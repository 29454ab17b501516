# SPDX-License-Identifier: Apache-2.0
# Source archive and packages, all into build/packages/.
PACKAGES := $(BUILD)/packages
REVISION ?= 1

.PHONY: dist deb lint-deb
dist:
	@packaging/dist.sh $(VERSION) $(PACKAGES)/qgpu-$(VERSION).tar.gz && echo $(PACKAGES)/qgpu-$(VERSION).tar.gz

deb:
	@packaging/need.sh product deb lint-deb
	@packaging/deb.sh $(VERSION) $(REVISION) $(PACKAGES)
	@$(MAKE) --no-print-directory -s lint-deb

lint-deb:
	@packaging/need.sh lint-deb
	@lintian --fail-on error,warning --tag-display-limit 0 $(PACKAGES)/qgpu*.deb
