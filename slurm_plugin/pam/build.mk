# SPDX-License-Identifier: Apache-2.0
# pam_qgpu.so: ssh sessions in a job get what the SPANK plugin gives to tasks. Needs libpam0g-dev.
PAM_SRC := slurm_plugin/pam/pam_qgpu.c slurm_plugin/common/paths.c \
           $(addprefix slurm_plugin/spank/,grant.c mounts.c drivers.c preload.c)
PAM_OBJ := $(patsubst slurm_plugin/%.c,$(BUILD)/obj/spank/%.o,$(PAM_SRC)) \
           $(BUILD)/obj/spank/qg_steps.o

NATIVE += $(BUILD)/lib/pam_qgpu.so

$(BUILD)/lib/pam_qgpu.so: $(PAM_OBJ) slurm_plugin/pam/pam_qgpu.lds
	@mkdir -p $(@D)
	$(CC) -shared -o $@ $(PAM_OBJ) -Wl,--version-script=slurm_plugin/pam/pam_qgpu.lds -lpam \
	  $(QG_LDFLAGS)
