# SPDX-License-Identifier: Apache-2.0
# What benchmarks put beside real programs: two that lie.
BENCH_TENANTS := bench/tenants
NATIVE += $(BUILD)/test/liar.so $(BUILD)/test/poser.so

$(BUILD)/test/liar.so $(BUILD)/test/poser.so: $(BUILD)/test/%.so: $(BENCH_TENANTS)/%.c \
    $(BENCH_TENANTS)/own_page.h enforcer/native/abi/qgpu_abi.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) -shared $(QG_LDFLAGS) -o $@ $< -lpthread
