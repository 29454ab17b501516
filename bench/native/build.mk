# The stub driver and the micro-benchmark of the shim.
BENCH_NATIVE := bench/native
BENCH_OBJ := $(BUILD)/obj/bench-native
BENCH_CFLAGS = $(QG_CFLAGS) -I$(BENCH_NATIVE) -Ibench/noise -Ienforcer/native/arbiter \
               -I$(CUDA_INC) -D__CUDA_API_VERSION_INTERNAL -D__CUDA_API_PUSH_VISIBILITY_DEFAULT

NATIVE += $(BUILD)/test/stub/libcuda.so.1 $(BUILD)/test/launch-bench

$(BUILD)/test/stub/libcuda.so.1: $(BENCH_NATIVE)/stub.c $(BENCH_NATIVE)/stub.h \
    $(BUILD)/obj/shim/gen/symbols.h
	@mkdir -p $(@D) $(BENCH_OBJ)
	$(CC) $(CFLAGS) -fPIC -x assembler-with-cpp -c -o $(BENCH_OBJ)/stub_exports.o \
	  $(BUILD)/obj/shim/gen/stub_exports.S
	$(CC) $(CFLAGS) $(BENCH_CFLAGS) -shared -Wl,-soname,libcuda.so.1 -Wl,-Bsymbolic $(QG_LDFLAGS) \
	  -o $@ $< $(BENCH_OBJ)/stub_exports.o -ldl -lpthread

BENCH_SRC := $(BENCH_NATIVE)/launch_bench.c $(BENCH_NATIVE)/mini_arbiter.c \
             enforcer/native/common/qg_msg.c enforcer/native/common/qg_seal.c
$(BUILD)/test/launch-bench: $(BENCH_SRC) \
    $(wildcard $(BENCH_NATIVE)/*.h enforcer/native/common/*.h) bench/noise/calibrate.h \
    $(wildcard enforcer/native/abi/*.h) enforcer/native/arbiter/policy/policy.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(BENCH_CFLAGS) $(QG_LDFLAGS) -o $@ $(BENCH_SRC) -ldl
