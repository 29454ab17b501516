# SPDX-License-Identifier: Apache-2.0
# The driver's control calls on our own channel groups (bench/gpu/experiments), and a driver that
# pretends for their test.
GPU_EXP := bench/gpu/experiments
GPU_EXP_CC = @mkdir -p $(@D) && $(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -isystem $(CUDA_INC) \
             -rdynamic -o $@ $(filter %.c,$^) -ldl

$(BUILD)/test/own: $(GPU_EXP)/own.c $(GPU_EXP)/rm_own.c $(GPU_EXP)/rm_own.h \
    enforcer/native/abi/qgpu_rm.h
	$(GPU_EXP_CC)

$(BUILD)/test/stops: $(GPU_EXP)/stops.c $(GPU_EXP)/card.c $(GPU_EXP)/rm_own.c $(GPU_EXP)/card.h \
    $(GPU_EXP)/rm_own.h $(GPU_EXP)/beat.ptx enforcer/native/abi/qgpu_rm.h
	$(GPU_EXP_CC)

$(BUILD)/test/own-driver/libcuda.so.1: tests/gpu/own_driver.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $<

NATIVE += $(BUILD)/test/own $(BUILD)/test/stops $(BUILD)/test/own-driver/libcuda.so.1
