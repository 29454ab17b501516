# SPDX-License-Identifier: Apache-2.0
# The arbiter; for tests: its sanitized twins and its decision as a library.
ARB_DIR := enforcer/native/arbiter
ARB_OBJ := $(BUILD)/obj/arbiter
# Sources lie in folders; each uses only those before it (tools/floors.py).
# HW=0 leaves hardware preemption out; hw/absent.c stands in for it.
ARB_ALL := $(sort $(wildcard $(ARB_DIR)/*.c $(ARB_DIR)/*/*.c))
ARB_HW  := $(wildcard $(ARB_DIR)/hw/hw_*.c $(ARB_DIR)/serve/hw_*.c)
ARB_NOT := $(if $(filter 0,$(HW)),$(ARB_HW),$(ARB_DIR)/hw/absent.c)
ARB_SRC := $(filter-out $(ARB_NOT),$(ARB_ALL)) enforcer/native/common/qg_msg.c \
           enforcer/native/common/qg_rm.c enforcer/native/common/qg_seal.c \
           enforcer/native/common/qg_steps.c
ARB_HDR := $(wildcard $(ARB_DIR)/*/*.h) $(wildcard enforcer/native/common/*.h) \
           $(wildcard enforcer/native/abi/*.h)
ARB_O   := $(patsubst enforcer/native/%.c,$(ARB_OBJ)/%.o,$(ARB_SRC:$(ARB_DIR)/%=enforcer/native/%))
ARB_NOHW_O := $(patsubst $(ARB_DIR)/%.c,$(ARB_OBJ)/%.o,$(filter-out $(ARB_HW),$(ARB_ALL))) \
              $(filter $(ARB_OBJ)/common/%,$(ARB_O))
ARB_CFLAGS := $(QG_CFLAGS) -I$(ARB_DIR) -pthread

# With QG_LTO: a tick goes through many small functions of several files; inlined, it costs about a
# twentieth less.
NATIVE += $(BUILD)/bin/qgpu-arbiter $(BUILD)/test/qgpu-arbiter-asan \
          $(BUILD)/test/qgpu-arbiter-tsan $(BUILD)/test/qgpu-arbiter-nohw \
          $(BUILD)/test/qgpu-arbiter-few \
          $(BUILD)/test/libqgpu_policy.so $(BUILD)/test/libqgpu_steps.so

$(ARB_OBJ)/%.o: $(ARB_DIR)/%.c $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ARB_CFLAGS) $(QG_LTO) -c $< -o $@

$(ARB_OBJ)/common/%.o: enforcer/native/common/%.c $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ARB_CFLAGS) $(QG_LTO) -c $< -o $@

$(ARB_OBJ)/main.o: gres/version.py
$(BUILD)/bin/qgpu-arbiter: $(ARB_O)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LTO) $(ARB_O) -o $@ $(QG_LDFLAGS) -pthread

$(BUILD)/test/qgpu-arbiter-nohw: $(ARB_NOHW_O)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LTO) $^ -o $@ $(QG_LDFLAGS) -pthread

$(BUILD)/test/qgpu-arbiter-asan: $(ARB_SRC) $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) -O1 -g $(ARB_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all \
	  -fno-omit-frame-pointer $(ARB_SRC) -o $@

$(BUILD)/test/qgpu-arbiter-tsan: $(ARB_SRC) $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) -O1 -g $(ARB_CFLAGS) -fsanitize=thread -fno-omit-frame-pointer $(ARB_SRC) -o $@

# Eight records of hardware preemption and 512 processes, so that tests can fill these tables.
$(BUILD)/test/qgpu-arbiter-few: $(ARB_SRC) $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) -O1 -g $(ARB_CFLAGS) -DHW_RECORDS=8u -DMAX_PROCS=512u $(ARB_SRC) -o $@

$(BUILD)/test/libqgpu_policy.so: $(wildcard $(ARB_DIR)/policy/*.c) $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ARB_CFLAGS) -shared $(filter %.c,$^) -o $@

$(BUILD)/test/libqgpu_steps.so: enforcer/native/common/qg_steps.c $(ARB_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ARB_CFLAGS) -shared $(filter %.c,$^) -o $@
