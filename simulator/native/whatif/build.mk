# SPDX-License-Identifier: Apache-2.0
# The simulation of `qgpu simulate`: the arbiter's own decision and tenants that are a few numbers
# each.
SIMULATE_DIR := simulator/native/whatif
SIMULATE_SRC := $(sort $(wildcard $(SIMULATE_DIR)/*.c)) \
                $(sort $(wildcard enforcer/native/arbiter/policy/*.c))
SIMULATE_HDR := $(wildcard $(SIMULATE_DIR)/*.h) $(wildcard enforcer/native/arbiter/policy/*.h) \
                enforcer/native/abi/qgpu_abi.h

NATIVE += $(BUILD)/bin/qgpu-simulate $(BUILD)/test/qgpu-simulate-asan

# In one piece: the decision is called some ten thousand times per simulated second.
$(BUILD)/bin/qgpu-simulate: $(SIMULATE_SRC) $(SIMULATE_HDR)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -O3 $(QG_LTO) $(QG_CFLAGS) -Ienforcer/native/arbiter -pthread $(SIMULATE_SRC) \
	  -o $@ $(QG_LDFLAGS) -lm

# With a check of each decision around it.
SIMULATE_CHECK := simulator/native/test/check_decisions.c
$(BUILD)/test/qgpu-simulate-asan: $(SIMULATE_SRC) $(SIMULATE_CHECK) $(SIMULATE_HDR)
	@mkdir -p $(@D)
	$(CC) -O1 -g $(QG_CFLAGS) -Ienforcer/native/arbiter -I$(SIMULATE_DIR) \
	  -fsanitize=address,undefined -fno-sanitize-recover=all \
	    -pthread -Wl,--wrap=qp_decide,--wrap=card_run $(SIMULATE_SRC) $(SIMULATE_CHECK) -o $@ -lm
