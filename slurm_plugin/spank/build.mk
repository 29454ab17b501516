# SPDX-License-Identifier: Apache-2.0
# qgpu_spank.so: needs libslurm-dev; good for one major.minor of Slurm. spank_stage: slurmstepd's
# part in the tests.
SPANK_SRC := $(wildcard slurm_plugin/spank/*.c) $(wildcard slurm_plugin/common/*.c)
SPANK_HDR := $(wildcard slurm_plugin/spank/*.h) $(wildcard slurm_plugin/common/*.h) \
             enforcer/native/common/qg_steps.h \
             $(wildcard enforcer/native/abi/*.h)
SPANK_OBJ := $(patsubst slurm_plugin/%.c,$(BUILD)/obj/spank/%.o,$(SPANK_SRC)) \
             $(BUILD)/obj/spank/qg_steps.o

NATIVE += $(BUILD)/lib/qgpu_spank.so $(BUILD)/test/spank_stage

$(BUILD)/obj/spank/%.o: slurm_plugin/%.c $(SPANK_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -D_FORTIFY_SOURCE=2 -c -o $@ $<

$(BUILD)/obj/spank/qg_steps.o: enforcer/native/common/qg_steps.c enforcer/native/common/qg_steps.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -D_FORTIFY_SOURCE=2 -c -o $@ $<

$(BUILD)/lib/qgpu_spank.so: $(SPANK_OBJ) slurm_plugin/spank/spank_qgpu.lds
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $(SPANK_OBJ) -Wl,--version-script=slurm_plugin/spank/spank_qgpu.lds \
	  $(QG_LDFLAGS)

$(BUILD)/test/spank_stage: tests/native/programs/spank_stage.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -rdynamic -o $@ $< -ldl $(QG_LDFLAGS)

NATIVE += $(BUILD)/test/spank_escape
$(BUILD)/test/spank_escape: tests/native/programs/spank_escape.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -o $@ $< -ldl $(QG_LDFLAGS)

NATIVE += $(BUILD)/test/spank_swap.so
$(BUILD)/test/spank_swap.so: tests/native/programs/spank_swap.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fPIC -shared -o $@ $< -ldl $(QG_LDFLAGS)

NATIVE += $(BUILD)/test/step-memory
$(BUILD)/test/step-memory: tests/native/programs/step_memory.c $(BUILD)/obj/spank/spank/memory.o \
                           $(BUILD)/obj/spank/qg_steps.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -Islurm_plugin/spank -o $@ $^ $(QG_LDFLAGS)
