"""qgpu.yaml: its sections as types, and how it is read (docs/specs/config.md)."""
