"""A site's Slurm configuration: read as Slurm does, and compared with what qgpu needs."""
