NATIVE += $(BUILD)/test/wake-noise $(BUILD)/test/keep-awake
$(BUILD)/test/wake-noise: bench/noise/wake_noise.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -o $@ $<
$(BUILD)/test/keep-awake: bench/noise/keep_awake.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -o $@ $< -lpthread
NATIVE += $(BUILD)/test/calibrate
$(BUILD)/test/calibrate: bench/noise/calibrate.c bench/noise/calibrate.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(QG_CFLAGS) $(QG_LDFLAGS) -o $@ $< -lpthread
