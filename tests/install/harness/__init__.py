"""Hosts with a real systemd, in containers: what the tests of the packages run on."""
