"""`qgpu setup`: qgpu's part of a host's Slurm configuration."""
