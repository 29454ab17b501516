"""`qgpu demo`: the main job on a private cluster, with every promise checked."""
