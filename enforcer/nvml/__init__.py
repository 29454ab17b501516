"""NVML: which cards there are and what runs on them, behind a deadline."""
