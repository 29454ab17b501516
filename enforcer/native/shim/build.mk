# The shim: libcuda.so.1 of the jobs.
SHIM_DIR := enforcer/native/shim
comma := ,
SHIM_OBJ := $(BUILD)/obj/shim
SHIM_GEN := $(SHIM_OBJ)/gen
SHIM_ALL := $(wildcard $(SHIM_DIR)/*/*.c $(SHIM_DIR)/hooks/*/*.c)
# HW=0 leaves hardware preemption out; groups/absent.c stands in for it.
SHIM_HW  := $(wildcard $(SHIM_DIR)/groups/rm_*.c)
SHIM_SRC := $(filter-out $(if $(filter 0,$(HW)),$(SHIM_HW),$(SHIM_DIR)/groups/absent.c),$(SHIM_ALL))
SHIM_COMMON := qg_msg qg_rm
SHIM_HEADERS := $(wildcard enforcer/native/abi/*.h enforcer/native/common/*.h $(SHIM_DIR)/*/*.h \
                $(SHIM_DIR)/hooks/*/*.h)
SHIM_REST := $(SHIM_OBJ)/symbols.o $(SHIM_OBJ)/exports.o $(SHIM_COMMON:%=$(SHIM_OBJ)/%.o)
SHIM_O := $(SHIM_SRC:$(SHIM_DIR)/%.c=$(SHIM_OBJ)/%.o) $(SHIM_REST)
SHIM_NOHW_O := $(patsubst $(SHIM_DIR)/%.c,$(SHIM_OBJ)/%.o,$(filter-out $(SHIM_HW),$(SHIM_ALL))) \
               $(SHIM_REST)
# Old versions and default-stream variants are declared, and exported with default visibility.
SHIM_CFLAGS = $(QG_CFLAGS) -I$(SHIM_GEN) -I$(SHIM_DIR) -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL \
              -D__CUDA_API_PUSH_VISIBILITY_DEFAULT -fvisibility=hidden -fno-semantic-interposition \
              -fcf-protection=branch

NATIVE += $(BUILD)/shim/libcuda.so.1 $(BUILD)/test/shim-nohw/libcuda.so.1

$(SHIM_GEN)/symbols.h: $(addprefix $(SHIM_DIR)/dispatch/,symbols.tsv classes.tsv generate.py)
	@mkdir -p $(SHIM_GEN)
	python3 $(SHIM_DIR)/dispatch/generate.py $(SHIM_DIR)/dispatch/symbols.tsv $(SHIM_GEN)

$(SHIM_OBJ)/%.o: $(SHIM_DIR)/%.c $(SHIM_GEN)/symbols.h $(SHIM_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_OLD_GLIBC) $(SHIM_CFLAGS) -c -o $@ $<

$(SHIM_COMMON:%=$(SHIM_OBJ)/%.o): $(SHIM_OBJ)/%.o: enforcer/native/common/%.c $(SHIM_HEADERS)
	@mkdir -p $(SHIM_OBJ)
	$(CC) $(CFLAGS) $(QG_OLD_GLIBC) $(QG_CFLAGS) -fvisibility=hidden -c -o $@ $<

$(SHIM_OBJ)/symbols.o: $(SHIM_GEN)/symbols.h
	$(CC) $(CFLAGS) $(SHIM_CFLAGS) -c -o $@ $(SHIM_GEN)/symbols.c

$(SHIM_OBJ)/exports.o: $(SHIM_GEN)/symbols.h $(SHIM_DIR)/dispatch/trampoline.h
	$(CC) $(CFLAGS) -I$(SHIM_DIR) -fPIC -x assembler-with-cpp -c -o $@ $(SHIM_GEN)/exports.S

$(BUILD)/shim/libcuda.so.1: $(SHIM_O)
$(BUILD)/test/shim-nohw/libcuda.so.1: $(SHIM_NOHW_O)
$(BUILD)/shim/libcuda.so.1 $(BUILD)/test/shim-nohw/libcuda.so.1:
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,libcuda.so.1 -Wl,--version-script=$(SHIM_GEN)/exports.map -Wl,-z,defs \
	  -Wl,-z,nodelete -Wl,-Bsymbolic $(QG_LDFLAGS) -o $@ $^ $(QG_OLD_LIBS)

SHIM_PROBE := $(wildcard tests/native/programs/probe/probe*.c)
SHIM_PROBE_H := $(addprefix tests/native/programs/,probe/probe.h leave.h) bench/native/stub.h

# Twins for tests: the shim under the sanitizers, with a probe of the same kind.
# $(1) name, $(2) flags for compiling and linking.
define SHIM_TWIN
NATIVE += $(BUILD)/test/shim-$(1)/libcuda.so.1 $(BUILD)/test/shim-$(1)/shim-probe
SHIM_$(1)_O := $(SHIM_SRC:$(SHIM_DIR)/%.c=$(BUILD)/obj/shim-$(1)/%.o) \
    $(SHIM_COMMON:%=$(BUILD)/obj/shim-$(1)/%.o)
$(BUILD)/obj/shim-$(1)/%.o: $(SHIM_DIR)/%.c $(SHIM_GEN)/symbols.h $(SHIM_HEADERS)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(SHIM_CFLAGS) $(2) -c -o $$@ $$<
$(SHIM_COMMON:%=$(BUILD)/obj/shim-$(1)/%.o): $(BUILD)/obj/shim-$(1)/%.o: \
    enforcer/native/common/%.c $(SHIM_HEADERS)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(QG_CFLAGS) -fvisibility=hidden $(2) -c -o $$@ $$<
$(BUILD)/test/shim-$(1)/libcuda.so.1: $$(SHIM_$(1)_O) $(SHIM_OBJ)/symbols.o $(SHIM_OBJ)/exports.o
	@mkdir -p $$(@D)
	$$(CC) -shared $(2) -Wl,-soname,libcuda.so.1 -Wl,--version-script=$(SHIM_GEN)/exports.map \
	  -Wl,-z,nodelete -Wl,-Bsymbolic $$(QG_LDFLAGS) -o $$@ $$^ -lpthread -ldl
$(BUILD)/test/shim-$(1)/shim-probe: $(SHIM_PROBE) $(SHIM_PROBE_H)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(QG_CFLAGS) $(2) -Ibench/native -I$$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL \
	  -o $$@ $(SHIM_PROBE) -ldl -lpthread
endef
$(eval $(call SHIM_TWIN,tsan,-fsanitize=thread))
$(eval $(call SHIM_TWIN,asan,-fsanitize=address$(comma)undefined -fno-sanitize-recover=all \
    -fno-omit-frame-pointer))

# What the shim's tests run: a program that takes orders, and the pure parts under sanitizers.
NATIVE += $(BUILD)/test/shim-probe $(BUILD)/test/shim-unit $(BUILD)/test/shim-race \
          $(BUILD)/test/early.so $(BUILD)/test/shim-cudart

$(BUILD)/test/shim-cudart: tests/native/programs/cudart.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -o $@ $< -ldl

$(BUILD)/test/early.so: tests/native/programs/early.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL -shared -o $@ $< -ldl

$(BUILD)/test/shim-probe: $(SHIM_PROBE) $(SHIM_PROBE_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -Ibench/native -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL \
	  -o $@ $(SHIM_PROBE) -ldl -lpthread

SHIM_UNIT := tests/native/programs/units/unit.c \
             $(addprefix $(SHIM_DIR)/base/,allocation_hash.c estimate.c thread.c)
$(BUILD)/test/shim-unit: $(SHIM_UNIT) \
    $(addprefix $(SHIM_DIR)/base/,allocation_hash.h estimate.h thread.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -I$(SHIM_DIR) \
	  -o $@ $(SHIM_UNIT) -lpthread

SHIM_IMAGE := tests/native/programs/units/image_unit.c $(wildcard $(SHIM_DIR)/base/image*.c)
NATIVE += $(BUILD)/test/shim-image-unit
$(BUILD)/test/shim-image-unit: $(SHIM_IMAGE) $(SHIM_DIR)/base/image.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -I$(SHIM_DIR) \
	  -o $@ $(SHIM_IMAGE) -ldl -lpthread

NATIVE += $(BUILD)/test/shim-place-unit
$(BUILD)/test/shim-place-unit: tests/native/programs/units/place_unit.c $(SHIM_DIR)/memory/place.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -I$(SHIM_DIR) \
	  -I$(CUDA_INC) -o $@ $<

SHIM_RACE := tests/native/programs/race.c $(addprefix $(SHIM_DIR)/,memory/memory.c \
             memory/allocation_table.c memory/contexts.c memory/ipc.c memory/open_files.c \
             process/job_sum.c base/allocation_hash.c)
$(BUILD)/test/shim-race: $(SHIM_RACE) $(SHIM_HEADERS) $(SHIM_GEN)/symbols.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SHIM_CFLAGS) -o $@ $(SHIM_RACE) -lpthread

NATIVE += $(BUILD)/test/shim-green-unit $(BUILD)/test/shim-primary-unit \
          $(BUILD)/test/shim-pool-unit $(BUILD)/test/shim-seen-unit
$(BUILD)/test/shim-green-unit: tests/native/programs/units/green_unit.c \
    $(SHIM_DIR)/hooks/context/green.c $(SHIM_DIR)/process/green.c
$(BUILD)/test/shim-primary-unit: tests/native/programs/units/primary_unit.c \
    $(SHIM_DIR)/hooks/context/context.c
$(BUILD)/test/shim-pool-unit: tests/native/programs/units/pool_unit.c $(SHIM_DIR)/memory/pools.c
$(BUILD)/test/shim-seen-unit: tests/native/programs/units/seen_unit.c $(SHIM_DIR)/track/streams.c \
    $(SHIM_DIR)/track/stream_ends.c
$(BUILD)/test/shim-green-unit $(BUILD)/test/shim-primary-unit $(BUILD)/test/shim-pool-unit \
    $(BUILD)/test/shim-seen-unit: $(SHIM_HEADERS) $(SHIM_GEN)/symbols.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SHIM_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all \
	  -o $@ $(filter %.c,$^) -lpthread

# One small program per group of memory calls; test_shim_memory_*.py look at the ledger after each
# of its steps.
SHIM_STEPS := mem_plain mem_pool mem_graph mem_vmm mem_share mem_green mem_variant mem_threads \
              mem_open_file mem_managed mem_module mem_room
NATIVE += $(SHIM_STEPS:%=$(BUILD)/test/shim-%)
$(SHIM_STEPS:%=$(BUILD)/test/shim-%): $(BUILD)/test/shim-%: tests/native/programs/memory/%.c \
    tests/native/programs/memory/step.h $(addprefix tests/native/programs/,must.h leave.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL -o $@ $< -ldl

# A driver each of whose functions answers the number of its (first) row in the table:
# test_shim_variants.py.
NATIVE += $(BUILD)/test/numbered/libcuda.so.1
$(BUILD)/test/numbered/libcuda.so.1: $(SHIM_DIR)/dispatch/symbols.tsv
	@mkdir -p $(@D)
	awk -F'\t' '!/^#/ { row++; if (!seen[$$1]++) print "int " $$1 "(void) { return " row "; }" }' $< \
	  | $(CC) -shared -fPIC -Wl,-soname,libcuda.so.1 -x c -o $@ -

# The functions of CUDA 12.2 and before, as a driver of branch 535 has them: test_shim_fitted.py.
NATIVE += $(BUILD)/test/older/libcuda.so.1
$(BUILD)/test/older/libcuda.so.1: $(SHIM_DIR)/dispatch/symbols.tsv
	@mkdir -p $(@D)
	awk -F'\t' '!/^#/ && $$3 <= 12020 && !seen[$$1]++ { print "int " $$1 "(void) { return 3; }" }' $< \
	  | $(CC) -shared -fPIC -Wl,-soname,libcuda.so.1 -x c -o $@ -

# The same for calls that submit work: test_shim_submit_groups.py. `task` does odd things:
# test_faults_*.py.
SHIM_SUBMITS := sub_kernel sub_copy sub_fill sub_order sub_graph task evil strange slow
NATIVE += $(SHIM_SUBMITS:%=$(BUILD)/test/shim-%)
$(SHIM_SUBMITS:%=$(BUILD)/test/shim-%): $(BUILD)/test/shim-%: tests/native/programs/submit/%.c \
    tests/native/programs/submit/submit.h tests/native/programs/must.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL -o $@ $< -ldl -lpthread

# Calls that no program should make: test_shim_odd_calls.py.
NATIVE += $(BUILD)/test/shim-odd-calls
$(BUILD)/test/shim-odd-calls: tests/native/programs/odd_calls.c tests/native/programs/must.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL -o $@ $< -ldl

# The table of the driver's objects, under sanitizers: test_shim_groups_table.py.
SHIM_RM_UNIT := tests/native/programs/units/rm_unit.c \
                $(addprefix $(SHIM_DIR)/groups/,rm_table.c rm_snapshot.c) $(SHIM_DIR)/base/thread.c
NATIVE += $(BUILD)/test/shim-rm-unit $(BUILD)/test/shim-rm-race
$(BUILD)/test/shim-rm-unit: $(SHIM_RM_UNIT) $(SHIM_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -I$(SHIM_DIR) \
	  -o $@ $(SHIM_RM_UNIT) -lpthread

$(BUILD)/test/shim-rm-race: $(SHIM_RM_UNIT) $(SHIM_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fsanitize=thread -I$(SHIM_DIR) -o $@ $(SHIM_RM_UNIT) -lpthread

# ioctl() as programs use it: test_shim_groups_calls.py.
NATIVE += $(BUILD)/test/shim-calls $(BUILD)/test/early-calls.so
$(BUILD)/test/shim-calls: tests/native/programs/calls.c $(SHIM_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -o $@ $<

$(BUILD)/test/early-calls.so: tests/native/programs/calls.c $(SHIM_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -DEARLY -shared -o $@ $<
