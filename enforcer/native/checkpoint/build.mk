# SPDX-License-Identifier: Apache-2.0
# qgpu-checkpoint: moves the GPU memory of processes into their host memory, and back.
CHECKPOINT_SRC := enforcer/native/checkpoint/main.c
CHECKPOINT_CFLAGS = $(QG_CFLAGS) -isystem $(CUDA_INC)

NATIVE += $(BUILD)/bin/qgpu-checkpoint $(BUILD)/test/qgpu-checkpoint-asan

$(BUILD)/bin/qgpu-checkpoint: $(CHECKPOINT_SRC) gres/version.py
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CHECKPOINT_CFLAGS) -pie -o $@ $< $(QG_LDFLAGS) -ldl

$(BUILD)/test/qgpu-checkpoint-asan: $(CHECKPOINT_SRC) gres/version.py
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CHECKPOINT_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all \
	  -o $@ $< -ldl

# A driver that answers what a test says, and one without these functions.
CHECKPOINT_FAKES := $(BUILD)/test/checkpoint-fake.so $(BUILD)/test/checkpoint-fake-old.so
NATIVE += $(CHECKPOINT_FAKES)
$(BUILD)/test/checkpoint-fake-old.so: CHECKPOINT_CFLAGS += -DFAKE_OLD
$(CHECKPOINT_FAKES): tests/native/programs/checkpoint_fake.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CHECKPOINT_CFLAGS) -shared -o $@ $<
