"""The engine of `qgpu simulate`: a trace of tenants in, what the arbiter would decide out."""
