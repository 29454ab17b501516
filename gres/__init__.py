"""Requests and grants. Its Python is pure: no Slurm commands, no NVML, no daemon.

`native/` is no part of the package: the optional GRES plugins of Slurm, in C, under the GPL.
"""
