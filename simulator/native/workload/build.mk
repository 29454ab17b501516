# SPDX-License-Identifier: Apache-2.0
WORKLOAD_DIR := simulator/native/workload
WORKLOAD_OBJ := $(BUILD)/obj/workload
WORKLOAD_SRC := $(wildcard $(WORKLOAD_DIR)/*.c)

$(WORKLOAD_OBJ)/%.o: $(WORKLOAD_DIR)/%.c $(WORKLOAD_DIR)/workload.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -I$(WORKLOAD_DIR) -isystem $(CUDA_INC) $(QG_OLD_GLIBC) -c $< -o $@

# It runs in old containers, as the libraries that it is there to try.
$(WORKLOAD_OBJ)/qg_start.o: enforcer/native/common/qg_start.c enforcer/native/common/qg_glibc.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -c $< -o $@

$(BUILD)/bin/qgpu-workload: $(WORKLOAD_SRC:$(WORKLOAD_DIR)/%.c=$(WORKLOAD_OBJ)/%.o) \
    $(WORKLOAD_OBJ)/qg_start.o
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LDFLAGS) -Wl,--wrap=__libc_start_main $^ -o $@ $(QG_OLD_LIBS) -lm

NATIVE += $(BUILD)/bin/qgpu-workload
