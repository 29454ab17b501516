# libnvidia-ml.so.1 of the jobs: the cards as the job may see them. Installed beside the jobs'
# libcuda.so.1.
NVSHIM_DIR := enforcer/native/shim_nvml
NVSHIM_OBJ := $(BUILD)/obj/shim_nvml
NVSHIM_GEN := $(NVSHIM_OBJ)/gen
NVSHIM_SRC := $(wildcard $(NVSHIM_DIR)/*.c)
NVSHIM_O := $(NVSHIM_SRC:$(NVSHIM_DIR)/%.c=$(NVSHIM_OBJ)/%.o) $(NVSHIM_OBJ)/names.o \
            $(NVSHIM_OBJ)/exports.o \
            $(addprefix $(NVSHIM_OBJ)/shared/,base/grant.o process/job_sum.o qg_msg.o)
NVSHIM_CFLAGS = $(QG_CFLAGS) -I$(NVSHIM_GEN) -I$(NVSHIM_DIR) -Ienforcer/native/shim \
                -isystem $(NVML_INC) -isystem $(CUDA_INC) -fvisibility=hidden -fcf-protection=branch

NATIVE += $(BUILD)/shim/libnvidia-ml.so.1

$(NVSHIM_GEN)/symbols.h: $(NVSHIM_DIR)/symbols.tsv enforcer/native/shim/dispatch/generate.py
	@mkdir -p $(NVSHIM_GEN)
	python3 enforcer/native/shim/dispatch/generate.py $(NVSHIM_DIR)/symbols.tsv $(NVSHIM_GEN)

$(NVSHIM_OBJ)/%.o: $(NVSHIM_DIR)/%.c $(NVSHIM_GEN)/symbols.h \
    $(wildcard $(NVSHIM_DIR)/*.h enforcer/native/shim/*/*.h enforcer/native/common/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_OLD_GLIBC) $(NVSHIM_CFLAGS) -c -o $@ $<

# Parts of the other shim, built anew: they see this library's table of symbols.
$(NVSHIM_OBJ)/shared/%.o: enforcer/native/shim/%.c $(NVSHIM_GEN)/symbols.h \
    $(wildcard enforcer/native/shim/*/*.h enforcer/native/common/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_OLD_GLIBC) $(NVSHIM_CFLAGS) -c -o $@ $<

$(NVSHIM_OBJ)/shared/qg_msg.o: enforcer/native/common/qg_msg.c enforcer/native/common/qg_msg.h \
    $(wildcard enforcer/native/abi/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_OLD_GLIBC) $(NVSHIM_CFLAGS) -c -o $@ $<

$(NVSHIM_OBJ)/names.o: $(NVSHIM_GEN)/symbols.h
	$(CC) $(CFLAGS) $(QG_OLD_GLIBC) $(NVSHIM_CFLAGS) -c -o $@ $(NVSHIM_GEN)/symbols.c

$(NVSHIM_OBJ)/exports.o: $(NVSHIM_GEN)/symbols.h enforcer/native/shim/dispatch/trampoline.h
	$(CC) $(CFLAGS) -Ienforcer/native/shim -fPIC -x assembler-with-cpp -c -o $@ $(NVSHIM_GEN)/exports.S

$(BUILD)/shim/libnvidia-ml.so.1: $(NVSHIM_O)
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=$(NVSHIM_GEN)/exports.map \
	  -Wl,-z,defs -Wl,-z,nodelete -Wl,-Bsymbolic $(QG_LDFLAGS) -o $@ $(NVSHIM_O) $(QG_OLD_LIBS)

# The same under AddressSanitizer and UBSan: test_shim_nvml.py.
NATIVE += $(BUILD)/test/shim-asan/libnvidia-ml.so.1
NVSHIM_ASAN := -fsanitize=address$(comma)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
NVSHIM_ASAN_OBJ := $(BUILD)/obj/shim_nvml-asan
NVSHIM_ASAN_O := $(NVSHIM_SRC:$(NVSHIM_DIR)/%.c=$(NVSHIM_ASAN_OBJ)/%.o) \
                 $(addprefix $(NVSHIM_ASAN_OBJ)/shared/,base/grant.o process/job_sum.o qg_msg.o)

$(NVSHIM_ASAN_OBJ)/%.o: $(NVSHIM_DIR)/%.c $(NVSHIM_GEN)/symbols.h \
    $(wildcard $(NVSHIM_DIR)/*.h enforcer/native/shim/*/*.h enforcer/native/common/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(NVSHIM_CFLAGS) $(NVSHIM_ASAN) -c -o $@ $<

$(NVSHIM_ASAN_OBJ)/shared/%.o: enforcer/native/shim/%.c $(NVSHIM_GEN)/symbols.h \
    $(wildcard enforcer/native/shim/*/*.h enforcer/native/common/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(NVSHIM_CFLAGS) $(NVSHIM_ASAN) -c -o $@ $<

$(NVSHIM_ASAN_OBJ)/shared/qg_msg.o: enforcer/native/common/qg_msg.c \
    enforcer/native/common/qg_msg.h $(wildcard enforcer/native/abi/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(NVSHIM_CFLAGS) $(NVSHIM_ASAN) -c -o $@ $<

$(BUILD)/test/shim-asan/libnvidia-ml.so.1: $(NVSHIM_ASAN_O) $(NVSHIM_OBJ)/names.o \
    $(NVSHIM_OBJ)/exports.o
	@mkdir -p $(@D)
	$(CC) -shared $(NVSHIM_ASAN) -Wl,-soname,libnvidia-ml.so.1 \
	  -Wl,--version-script=$(NVSHIM_GEN)/exports.map -Wl,-z,nodelete \
	  -Wl,-Bsymbolic $(QG_LDFLAGS) -o $@ $^ -lpthread -ldl
