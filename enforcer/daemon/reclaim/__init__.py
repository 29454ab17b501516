"""Memory of reclaimable jobs leaves cards and returns (docs/specs/reclaim.md)."""
