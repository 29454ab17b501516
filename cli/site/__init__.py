"""A site's configuration before it is used: `qgpu plan`, `lint` and `render`."""
