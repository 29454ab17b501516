-- SPDX-License-Identifier: Apache-2.0
-- One row per (job, card, grant). A requeued job has a new grant and so a new row. NULL: not measured; 0: measured,
-- and it was zero. Times are nanoseconds of CLOCK_REALTIME, durations nanoseconds, memory bytes.
CREATE TABLE usage (
    id                  INTEGER PRIMARY KEY,
    job_id              INTEGER NOT NULL,
    node                TEXT    NOT NULL,
    uuid                TEXT    NOT NULL,
    card_index          INTEGER NOT NULL,
    uid                 INTEGER NOT NULL,
    class               TEXT,              -- online, offline; NULL for whole cards
    state               TEXT    NOT NULL,  -- active, whole
    share               INTEGER NOT NULL,  -- percent
    mem_cap             INTEGER NOT NULL,
    mem_total           INTEGER NOT NULL,
    granted_at          INTEGER NOT NULL,
    ended_at            INTEGER,           -- NULL while the grant stands
    end_reason          TEXT,              -- epilog, marker, boot, replaced, failed
    busy_ns             INTEGER,
    launches            INTEGER,
    mem_peak            INTEGER,           -- as the shim counted
    nvml_mem_peak       INTEGER,           -- as the driver counted, contexts included
    denied              INTEGER,
    preemptions         INTEGER,
    closed_preempted_ns INTEGER,
    closed_share_ns     INTEGER,
    gate_close_max_ns   INTEGER,
    sampled_at          INTEGER,           -- of the last sample of the arbiter
    UNIQUE (job_id, uuid, granted_at)
);

CREATE INDEX usage_open ON usage (job_id) WHERE ended_at IS NULL;

-- The arbiter counts from its own start. What it had said last, per row, so that a restart of either daemon neither
-- loses nor doubles anything.
CREATE TABLE baseline (
    usage_id            INTEGER PRIMARY KEY REFERENCES usage (id) ON DELETE CASCADE,
    boot_id             TEXT    NOT NULL,
    tenant_since        INTEGER NOT NULL,
    busy_ns             INTEGER NOT NULL,
    launches            INTEGER NOT NULL,
    denied              INTEGER NOT NULL,
    preemptions         INTEGER NOT NULL,
    closed_preempted_ns INTEGER NOT NULL,
    closed_share_ns     INTEGER NOT NULL
);
