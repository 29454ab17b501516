"""What NVML sees against what is granted, and what is done about it."""
