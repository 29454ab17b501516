# SPDX-License-Identifier: Apache-2.0
# The driver's control calls on our own channel groups (bench/gpu/experiments), and a driver that pretends for its test.
GPU_EXP := bench/gpu/experiments

$(BUILD)/test/own: $(GPU_EXP)/own.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -isystem $(CUDA_INC) -rdynamic -o $@ $< -ldl

$(BUILD)/test/own-driver/libcuda.so.1: tests/gpu/own_driver.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $<

NATIVE += $(BUILD)/test/own $(BUILD)/test/own-driver/libcuda.so.1
