# SPDX-License-Identifier: Apache-2.0
WORKLOAD_DIR := enforcer/native/workload
WORKLOAD_OBJ := $(BUILD)/obj/workload
WORKLOAD_SRC := $(wildcard $(WORKLOAD_DIR)/*.c)

$(WORKLOAD_OBJ)/%.o: $(WORKLOAD_DIR)/%.c $(WORKLOAD_DIR)/workload.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -I$(WORKLOAD_DIR) -isystem $(CUDA_INC) -c $< -o $@

$(BUILD)/bin/qgpu-workload: $(WORKLOAD_SRC:$(WORKLOAD_DIR)/%.c=$(WORKLOAD_OBJ)/%.o)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LDFLAGS) $^ -o $@ -ldl -lm

NATIVE += $(BUILD)/bin/qgpu-workload
