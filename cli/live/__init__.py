"""What happens on this node now: `qgpu top`, `jobs`, `cards`, `card` and `job`."""
