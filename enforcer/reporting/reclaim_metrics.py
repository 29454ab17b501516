"""Prometheus metrics of memory that was taken back (docs/specs/reporting/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from enforcer.reporting.state import NodeState

# A figure of the node -> (metric, unit, help, whether it is a counter).
RECLAIMS: dict[str, tuple[str, float, str, bool]] = {
    "leaves": ("qgpu_reclaim_leaves", 1, "Times the memory of a job left its cards.", True),
    "returns": ("qgpu_reclaim_returns", 1, "Times it returned.", True),
    "moved": ("qgpu_reclaim_moved", 1, "Jobs that went to another card.", True),
    "not_moved": ("qgpu_reclaim_not_moved", 1, "Jobs that another card did not take.", True),
    "unable": ("qgpu_reclaim_unable", 1, "Jobs that were ended, as theirs cannot move.", True),
    "left_bytes": ("qgpu_reclaim_left_bytes", 1, "Bytes that left cards.", True),
    "left_ns": ("qgpu_reclaim_left_seconds", 1e-9, "Time that took.", True),
    "returned_bytes": ("qgpu_reclaim_returned_bytes", 1, "Bytes that returned.", True),
    "returned_ns": ("qgpu_reclaim_returned_seconds", 1e-9, "Time that took.", True),
    "away": ("qgpu_reclaim_away", 1, "Jobs whose memory is away now.", False),
    "away_bytes": ("qgpu_reclaim_away_bytes", 1, "Their bytes, in host memory.", False),
    "claims": ("qgpu_reclaim_claims", 1, "Jobs whose start waits for memory.", False),
}


def reclaims(state: NodeState) -> Iterator[Metric]:
    """What was taken back on the node; nothing where no class is reclaimable."""
    for name, (metric, unit, text, counts) in RECLAIMS.items():
        if state.reclaims is None or name not in state.reclaims:
            continue
        kind = CounterMetricFamily if counts else GaugeMetricFamily
        family = kind(metric, text, labels=["node"])
        family.add_metric([state.node], state.reclaims[name] * unit)
        yield family
