"""The one place that knows qgpu's version; C programs, packages and archives take it from here as well."""

VERSION = "0.2.0"
