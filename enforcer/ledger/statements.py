"""The statements that write a sample: one per tenant and table, whatever was measured."""

from __future__ import annotations

from enforcer.ledger.schema import COUNTERS, OPTIONAL, PEAKS

BASE = ("usage_id", "boot_id", "tenant_since", *COUNTERS, *OPTIONAL, "close_hist", "sampled_at")
# One statement for all sums: None leaves a column as it is.
ADD = "UPDATE usage SET " + ", ".join(
    [
        *(f"{name} = coalesce({name}, 0) + ?" for name in COUNTERS),
        *(f"{name} = max(coalesce({name}, 0), ?)" for name in PEAKS),
        # Of a row that an older qgpud began they stay NULL: what was before its end is not in them.
        *(
            f"{name} = max(CASE WHEN sampled_at IS NULL THEN 0 ELSE {name} END, ?)"
            for name in ("mem_refused", "busy_most_ns")
        ),
        "harvest_ns = CASE class WHEN 'offline' THEN coalesce(harvest_ns, 0) + ? END",
        *(
            f"{name} = coalesce(coalesce({name}, 0) + ?, {name})"
            for name in (*OPTIONAL, "mem_mib_ms", "mem_seen_ms")
        ),
        "sampled_at = ? WHERE id = ?",
    ]
)
TOUCH = (
    "UPDATE usage SET mem_mib_ms = coalesce(coalesce(mem_mib_ms, 0) + ?, mem_mib_ms), mem_seen_ms ="
    " coalesce(coalesce(mem_seen_ms, 0) + ?, mem_seen_ms), sampled_at = ? WHERE id = ?"
)
ADD_SERIES = (
    "INSERT INTO series (usage_id, step, at, samples, busy_ns, closed_preempted_ns,"
    " closed_share_ns, launches, mem_used) VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
    " SET samples = samples + 1, busy_ns = busy_ns + excluded.busy_ns, closed_preempted_ns ="
    " closed_preempted_ns + excluded.closed_preempted_ns, closed_share_ns = closed_share_ns +"
    " excluded.closed_share_ns, launches = launches + excluded.launches, mem_used ="
    " max(coalesce(mem_used, excluded.mem_used), coalesce(excluded.mem_used, mem_used))"
)
# Update an existing row: replacing it would take a third longer.
KEEP = (
    f"INSERT INTO baseline ({', '.join(BASE)}) VALUES ({', '.join('?' * len(BASE))})"
    f" ON CONFLICT DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in BASE[1:])}"
)
ADD_LATENCY = (
    "INSERT INTO latency VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count"
)
ADD_CARD = (
    "INSERT INTO card_series (step, at, uuid, node, card_index, samples, util_percent, mem_used)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET samples = samples +"
    " excluded.samples, util_percent = CASE WHEN excluded.util_percent IS NULL THEN util_percent"
    " ELSE coalesce(util_percent, 0) + excluded.util_percent END, mem_used = max(coalesce(mem_used,"
    " excluded.mem_used), coalesce(excluded.mem_used, mem_used))"
)
OPEN_USAGE = (
    "INSERT OR IGNORE INTO usage (job_id, node, uuid, card_index, uid, class, state, share,"
    " mem_cap, mem_total, granted_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
