# SPDX-License-Identifier: Apache-2.0
# The simulated driver: the device side, and the two libraries that programs load.
SIM_DIR := simulator/native
SIM_OBJ := $(BUILD)/obj/sim
# In the order of dependence: each knows those before it.
SIM_CUDA := $(addprefix libcuda/,image base context stream memory copy launch graph runtime \
            checkpoint entry)
SIM_PARTS := protocol model device control serve $(SIM_CUDA) libnvml
SIM_HDR := $(wildcard $(SIM_PARTS:%=$(SIM_DIR)/%/*.h)) enforcer/native/abi/qgpu_rm.h
SIM_CLIENT_SRC := $(SIM_DIR)/protocol/sim_client.c
SIM_MODEL_SRC := $(wildcard $(SIM_DIR)/model/*.c)
SIM_GPU_SRC := $(SIM_MODEL_SRC) $(wildcard $(SIM_DIR)/device/*.c $(SIM_DIR)/control/*.c \
               $(SIM_DIR)/serve/*.c)
# SIM_RUNTIME=0 leaves out the answer to the test that NVIDIA's runtime makes of its driver
# (docs/adr/0027): programs of the runtime then refuse the simulated driver.
SIM_ANSWER := $(addprefix $(SIM_DIR)/libcuda/runtime/,cu_handshake.c cu_md2.c)
SIM_CU_ALL := $(SIM_CLIENT_SRC) $(wildcard $(SIM_CUDA:%=$(SIM_DIR)/%/*.c))
SIM_CU_SRC := $(filter-out $(if $(filter 0,$(SIM_RUNTIME)),$(SIM_ANSWER)),$(SIM_CU_ALL))
SIM_ML_SRC := $(SIM_CLIENT_SRC) $(wildcard $(SIM_DIR)/libnvml/*.c)
SIM_INC = $(SIM_PARTS:%=-I$(SIM_DIR)/%) -isystem $(CUDA_INC) -isystem $(NVML_INC) \
          -Wno-deprecated-declarations $(if $(filter 0,$(SIM_RUNTIME)),-DSIM_NO_ANSWER)
SIM_SAN := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# -Bsymbolic: a preloaded shim exports the same names; the library must keep calling itself.
SIM_SO = $(CC) $(CFLAGS) $(QG_LDFLAGS) -shared -Wl,-Bsymbolic -Wl,-soname,$(@F) \
         -Wl,--version-script=$(filter %.map,$^) \
  $(filter %.o,$^) -o $@ $(QG_OLD_LIBS)

$(SIM_OBJ)/%.o: $(SIM_DIR)/%.c $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(SIM_INC) -c $< -o $@

# The two libraries' part, but not the device side's.
$(SIM_CU_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o) \
    $(SIM_ML_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o): SIM_INC += $(QG_OLD_GLIBC)

# Every function of the driver and of NVML is there. Those without a body are stubs; nm says which.
# cuGetProcAddress's table is made of the same lists.
SIM_CU_LIST := enforcer/native/shim/dispatch/symbols.tsv
SIM_ML_LIST := enforcer/native/shim_nvml/symbols.tsv
SIM_CU_BODIES := $(filter-out %/cu_table.o %/cu_stubs.o %/sim_client.o, \
                 $(SIM_CU_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o))
SIM_ML_BODIES := $(filter-out %/ml_stubs.o %/sim_client.o, \
                 $(SIM_ML_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o))
SIM_LIST = @mkdir -p $(@D)
SIM_LIST += && nm -g --defined-only $(filter %.o,$^) | awk -f $(filter %.awk,$^) - \
            $(filter %.tsv,$^) > $@.new && mv $@.new $@
SIM_CU_GEN := $(SIM_OBJ)/libcuda/entry
SIM_ML_GEN := $(SIM_OBJ)/libnvml

$(SIM_CU_GEN)/cu_rows.h: $(SIM_CU_BODIES) $(SIM_DIR)/libcuda/entry/rows.awk $(SIM_CU_LIST)
	$(SIM_LIST)

$(SIM_CU_GEN)/cu_stubs.h: $(SIM_CU_BODIES) $(SIM_OBJ)/libcuda/entry/cu_table.o \
    $(SIM_DIR)/stubs.awk $(SIM_CU_LIST)
	$(SIM_LIST)

$(SIM_ML_GEN)/ml_stubs.h: $(SIM_ML_BODIES) $(SIM_DIR)/stubs.awk $(SIM_ML_LIST)
	$(SIM_LIST)

$(SIM_CU_GEN)/cu_table.o: $(SIM_CU_GEN)/cu_rows.h
$(SIM_CU_GEN)/cu_stubs.o: $(SIM_CU_GEN)/cu_stubs.h
$(SIM_ML_GEN)/ml_stubs.o: $(SIM_ML_GEN)/ml_stubs.h
$(SIM_CU_GEN)/cu_table.o $(SIM_CU_GEN)/cu_stubs.o: SIM_INC += -I$(SIM_CU_GEN)
$(SIM_ML_GEN)/ml_stubs.o: SIM_INC += -I$(SIM_ML_GEN)

$(SIM_OBJ)/serve/gpu_options.o: gres/version.py

# The rules that come with the program are a text in it.
$(SIM_OBJ)/device/kernel_cost.h: $(SIM_DIR)/device/kernel_cost.txt
	@mkdir -p $(@D)
	awk '{ gsub(/["\\]/, "\\\\&"); print "\"" $$0 "\\n\"" }' $< > $@.new && mv $@.new $@
$(SIM_OBJ)/device/gpu_cost.o: $(SIM_OBJ)/device/kernel_cost.h
$(SIM_OBJ)/device/gpu_cost.o: SIM_INC += -I$(SIM_OBJ)/device

$(BUILD)/bin/qgpu-simgpu: $(SIM_GPU_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_LDFLAGS) $^ -o $@

# dlclose() leaves it there: its threads go on.
$(BUILD)/sim/libcuda.so.1 $(BUILD)/test/sim-no-answer/libcuda.so.1: QG_LDFLAGS += -Wl,-z,nodelete

$(BUILD)/sim/libcuda.so.1: $(SIM_CU_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o) \
    $(SIM_DIR)/libcuda/entry/libcuda.map
	@mkdir -p $(@D)
	$(SIM_SO)

# The same driver without that answer, for the control of the tests.
SIM_MUTE := $(SIM_OBJ)/libcuda/runtime/cu_export.mute.o
$(SIM_MUTE): $(SIM_DIR)/libcuda/runtime/cu_export.c $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(SIM_INC) $(QG_OLD_GLIBC) -DSIM_NO_ANSWER -c $< -o $@

$(BUILD)/test/sim-no-answer/libcuda.so.1: $(SIM_MUTE) $(SIM_DIR)/libcuda/entry/libcuda.map \
    $(filter-out $(SIM_OBJ)/libcuda/runtime/cu_export.o,$(patsubst $(SIM_DIR)/%.c,$(SIM_OBJ)/%.o,\
      $(filter-out $(SIM_ANSWER),$(SIM_CU_ALL))))
	@mkdir -p $(@D)
	$(SIM_SO)

$(BUILD)/sim/libnvidia-ml.so.1: $(SIM_ML_SRC:$(SIM_DIR)/%.c=$(SIM_OBJ)/%.o) \
    $(SIM_DIR)/libnvml/libnvml.map
	@mkdir -p $(@D)
	$(SIM_SO)

# For the tests: the model alone and the whole device side under sanitizers.
$(BUILD)/test/sim-model-test: $(SIM_DIR)/test/model_test.c $(SIM_DIR)/test/model_world.h \
    $(SIM_MODEL_SRC) $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(QG_CFLAGS) $(SIM_INC) $(SIM_SAN) $(filter %.c,$^) -o $@

$(BUILD)/test/sim-preempt-test: $(SIM_DIR)/test/preempt_test.c $(SIM_DIR)/test/model_world.h \
    $(SIM_MODEL_SRC) $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(QG_CFLAGS) $(SIM_INC) $(SIM_SAN) $(filter %.c,$^) -o $@

$(BUILD)/test/qgpu-simgpu-asan: $(SIM_GPU_SRC) $(SIM_HDR) $(SIM_OBJ)/device/kernel_cost.h
	@mkdir -p $(@D)
	$(CC) $(QG_CFLAGS) $(SIM_INC) -I$(SIM_OBJ)/device $(SIM_SAN) $(filter %.c,$^) -o $@

# The reader of modules by itself: images from stdin, what is in them to stdout.
SIM_IMAGE_SRC := $(SIM_DIR)/test/image_test.c $(wildcard $(SIM_DIR)/libcuda/image/*.c)
$(BUILD)/test/sim-image-test: $(SIM_IMAGE_SRC) $(SIM_HDR)
	@mkdir -p $(@D)
	$(CC) $(QG_CFLAGS) $(SIM_INC) $(SIM_SAN) $(filter %.c,$^) -o $@ -ldl

# Programs of the tests. Once with the driver as a library, once with all of it in the program,
# under sanitizers. graphs: what graphs keep and captures take; checkpoint: memory of all kinds.
$(BUILD)/test/sim-%: tests/native/programs/%.c tests/native/programs/must.h \
    $(BUILD)/sim/libcuda.so.1
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -isystem $(CUDA_INC) -o $@ $< $(BUILD)/sim/libcuda.so.1

$(BUILD)/test/sim-%-asan: tests/native/programs/%.c tests/native/programs/must.h $(SIM_CU_SRC) \
    $(SIM_HDR) $(SIM_CU_GEN)/cu_rows.h $(SIM_CU_GEN)/cu_stubs.h
	@mkdir -p $(@D)
	$(CC) $(QG_CFLAGS) $(SIM_INC) -I$(SIM_CU_GEN) -DCOUNTED $(SIM_SAN) $(SIM_CU_SRC) $< \
	  -o $@ -lpthread -ldl

NATIVE += $(BUILD)/bin/qgpu-simgpu $(BUILD)/sim/libcuda.so.1 $(BUILD)/sim/libnvidia-ml.so.1 \
          $(BUILD)/test/sim-no-answer/libcuda.so.1 $(BUILD)/test/sim-graphs
