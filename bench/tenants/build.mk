# SPDX-License-Identifier: Apache-2.0
# What benchmarks put in place of real programs: many light tenants in one process, and two that lie.
BENCH_TENANTS := bench/tenants
NATIVE += $(BUILD)/test/light-tenants $(BUILD)/test/liar.so $(BUILD)/test/poser.so

$(BUILD)/test/light-tenants: $(BENCH_TENANTS)/light_tenants.c enforcer/native/common/qg_msg.c enforcer/native/common/qg_seal.c \
  $(wildcard enforcer/native/common/*.h) enforcer/native/abi/qgpu_abi.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -o $@ $(filter %.c,$^)

$(BUILD)/test/liar.so $(BUILD)/test/poser.so: $(BUILD)/test/%.so: $(BENCH_TENANTS)/%.c $(BENCH_TENANTS)/own_page.h enforcer/native/abi/qgpu_abi.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -shared $(QG_LDFLAGS) -o $@ $< -lpthread
