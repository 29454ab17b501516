# SPDX-License-Identifier: Apache-2.0
# qgpu-mounts: does in a process of its own what the SPANK plugin does in a task, to learn whether
# this node can.
PROBE_SRC := slurm_plugin/probe/main.c slurm_plugin/common/paths.c \
  $(addprefix slurm_plugin/spank/,mounts.c drivers.c preload.c)
PROBE_OBJ := $(patsubst slurm_plugin/%.c,$(BUILD)/obj/spank/%.o,$(PROBE_SRC))

NATIVE += $(BUILD)/bin/qgpu-mounts

$(BUILD)/bin/qgpu-mounts: $(PROBE_OBJ)
	@mkdir -p $(@D)
	$(CC) -pie -o $@ $^ $(QG_LDFLAGS)
