# SPDX-License-Identifier: Apache-2.0
# The simulated driver: the device side, and the two libraries that programs load.
SIM_DIR := enforcer/native/sim
SIM_OBJ := $(BUILD)/obj/sim
SIM_HDR := $(wildcard $(SIM_DIR)/*.h)
SIM_GPU_SRC := $(SIM_DIR)/sim_model.c $(wildcard $(SIM_DIR)/gpu_*.c)
SIM_CU_SRC := $(wildcard $(SIM_DIR)/cu_*.c)
SIM_CUDA_FLAGS = -I$(SIM_DIR) -isystem $(CUDA_INC) -Wno-deprecated-declarations

$(SIM_OBJ)/%.o: $(SIM_DIR)/%.c $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(SIM_CUDA_FLAGS) -c $< -o $@

$(BUILD)/bin/qgpu-simgpu: $(SIM_GPU_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LDFLAGS) $^ -o $@

$(BUILD)/sim/libcuda.so.1: $(SIM_CU_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o) $(SIM_DIR)/libcuda.map
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LDFLAGS) -shared -Wl,-Bsymbolic -Wl,-soname,libcuda.so.1 -Wl,--version-script=$(SIM_DIR)/libcuda.map \
	  $(filter %.o,$^) -o $@ -lpthread -ldl

NATIVE += $(BUILD)/bin/qgpu-simgpu $(BUILD)/sim/libcuda.so.1
