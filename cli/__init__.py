"""What people type: qgpu plan, report, sandbox and the others."""
