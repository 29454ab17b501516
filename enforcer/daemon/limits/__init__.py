"""The driver's own memory limits per cgroup, beside the shim's ledger."""
