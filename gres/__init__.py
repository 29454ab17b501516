"""Requests and grants. Pure: no Slurm commands, no NVML, no daemon."""
