"""What people ask a running qgpud, and its answers (docs/specs/daemon.md)."""
