"""`qgpu report` and `qgpu collect`: what was granted and what was used."""
