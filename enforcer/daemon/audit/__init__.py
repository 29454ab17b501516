"""The audit: compares NVML with grants and registrations, and acts on what differs."""
