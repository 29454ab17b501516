"""Data only: example configurations and the templates that are rendered from them."""
