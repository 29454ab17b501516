NATIVE += $(BUILD)/test/wake-noise
$(BUILD)/test/wake-noise: bench/noise/wake_noise.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -o $@ $<
