# The shim: libcuda.so.1 of the jobs.
SHIM_DIR := enforcer/native/shim
SHIM_OBJ := $(BUILD)/obj/shim
SHIM_GEN := $(SHIM_OBJ)/gen
SHIM_SRC := $(wildcard $(SHIM_DIR)/*.c)
SHIM_O := $(SHIM_SRC:$(SHIM_DIR)/%.c=$(SHIM_OBJ)/%.o) $(SHIM_OBJ)/symbols.o $(SHIM_OBJ)/exports.o $(SHIM_OBJ)/qg_msg.o
# Old versions and default-stream variants are declared, and exported with default visibility.
SHIM_CFLAGS = $(QG_CFLAGS) -I$(SHIM_GEN) -I$(SHIM_DIR) -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL \
              -D__CUDA_API_PUSH_VISIBILITY_DEFAULT -fvisibility=hidden -fno-semantic-interposition -fcf-protection=branch

NATIVE += $(BUILD)/shim/libcuda.so.1

$(SHIM_GEN)/symbols.h: $(SHIM_DIR)/symbols.tsv $(SHIM_DIR)/generate.py
	@mkdir -p $(SHIM_GEN)
	python3 $(SHIM_DIR)/generate.py $(SHIM_DIR)/symbols.tsv $(SHIM_GEN)

$(SHIM_OBJ)/%.o: $(SHIM_DIR)/%.c $(SHIM_GEN)/symbols.h $(wildcard $(SHIM_DIR)/*.h) enforcer/native/abi/qgpu_abi.h
	@mkdir -p $(SHIM_OBJ)
	$(CC) $(CFLAGS) $(SHIM_CFLAGS) -c -o $@ $<

$(SHIM_OBJ)/qg_msg.o: enforcer/native/common/qg_msg.c enforcer/native/common/qg_msg.h enforcer/native/abi/qgpu_abi.h
	@mkdir -p $(SHIM_OBJ)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fvisibility=hidden -c -o $@ $<

$(SHIM_OBJ)/symbols.o: $(SHIM_GEN)/symbols.h
	$(CC) $(CFLAGS) $(SHIM_CFLAGS) -c -o $@ $(SHIM_GEN)/symbols.c

$(SHIM_OBJ)/exports.o: $(SHIM_GEN)/symbols.h $(SHIM_DIR)/trampoline.h
	$(CC) $(CFLAGS) -I$(SHIM_DIR) -fPIC -x assembler-with-cpp -c -o $@ $(SHIM_GEN)/exports.S

$(BUILD)/shim/libcuda.so.1: $(SHIM_O)
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,libcuda.so.1 -Wl,--version-script=$(SHIM_GEN)/exports.map -Wl,-z,defs -Wl,-z,nodelete \
	  -Wl,-Bsymbolic $(QG_LDFLAGS) -o $@ $(SHIM_O) -lpthread -ldl

# What the shim's tests run: a program that takes orders, and the pure parts under sanitizers.
NATIVE += $(BUILD)/test/shim-probe $(BUILD)/test/shim-unit $(BUILD)/test/shim-race

$(BUILD)/test/shim-probe: tests/native/shim/probe.c bench/native/stub.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -Ibench/native -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL -o $@ $< -ldl -lpthread

SHIM_UNIT := tests/native/shim/unit.c $(SHIM_DIR)/ledger.c $(SHIM_DIR)/estimate.c
$(BUILD)/test/shim-unit: $(SHIM_UNIT) $(SHIM_DIR)/ledger.h $(SHIM_DIR)/estimate.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all -I$(SHIM_DIR) -o $@ $(SHIM_UNIT)

SHIM_RACE := tests/native/shim/race.c $(SHIM_DIR)/memory.c $(SHIM_DIR)/jobsum.c $(SHIM_DIR)/ledger.c
$(BUILD)/test/shim-race: $(SHIM_RACE) $(wildcard $(SHIM_DIR)/*.h) $(SHIM_GEN)/symbols.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(SHIM_CFLAGS) -o $@ $(SHIM_RACE) -lpthread
