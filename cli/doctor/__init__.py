"""`qgpu doctor`: what is on this host against what should be."""
