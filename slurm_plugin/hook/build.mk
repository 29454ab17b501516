# SPDX-License-Identifier: Apache-2.0
# qgpu-hook: static, because it runs twice per job and ld.so would be half of its time.
HOOK_SRC := $(wildcard slurm_plugin/hook/*.c) $(wildcard slurm_plugin/common/*.c)
HOOK_HDR := slurm_plugin/hook/hook.h $(wildcard slurm_plugin/common/*.h) \
            $(wildcard enforcer/native/abi/*.h)
HOOK_OBJ := $(patsubst slurm_plugin/%.c,$(BUILD)/obj/hook/%.o,$(HOOK_SRC))

NATIVE += $(BUILD)/bin/qgpu-hook

$(BUILD)/obj/hook/%.o: slurm_plugin/%.c $(HOOK_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -D_FORTIFY_SOURCE=2 -c -o $@ $<

$(BUILD)/bin/qgpu-hook: $(HOOK_OBJ)
	@mkdir -p $(@D)
	$(CC) -static -o $@ $^ $(QG_LDFLAGS)
