# SPDX-License-Identifier: Apache-2.0
# For slurmd of a sandbox with cgroups version 2 on a machine that has version 1 mounted too.
UNIFIED_SRC := simulator/native/unified/unified.c

NATIVE += $(BUILD)/sim/libunified.so

$(BUILD)/sim/libunified.so: $(UNIFIED_SRC)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -shared $< -o $@
