"""The checks of `qgpu doctor`, by subject. None of them changes anything."""
