"""What is done to jobs of Slurm: `qgpu extend` and `qgpu guard`."""
