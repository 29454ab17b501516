"""What was asked and what was granted. Pure: no Slurm commands, no NVML, no daemon."""
