"""qgpu's version, for Python, C programs, packages and archives."""

VERSION = "0.2.0"
