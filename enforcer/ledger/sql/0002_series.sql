-- SPDX-License-Identifier: Apache-2.0
-- What a job did over time, and what its card did beside it. NULL: not measured; 0: measured, and it was zero.
ALTER TABLE usage ADD COLUMN closed_suspended_ns INTEGER;  -- the part of closed_preempted_ns for another card of the job
ALTER TABLE usage ADD COLUMN held_ns INTEGER;              -- online: its card was kept for it (busy and idle_release)
ALTER TABLE usage ADD COLUMN harvest_ns INTEGER;           -- offline: the part of busy_ns while an online grant stood on the card
ALTER TABLE usage ADD COLUMN mem_mib_ms INTEGER;           -- memory held, summed over time: MiB x milliseconds
ALTER TABLE usage ADD COLUMN mem_seen_ms INTEGER;          -- for how long; mean = mem_mib_ms / mem_seen_ms
ALTER TABLE baseline ADD COLUMN closed_suspended_ns INTEGER;
ALTER TABLE baseline ADD COLUMN held_ns INTEGER;
ALTER TABLE baseline ADD COLUMN close_hist TEXT;           -- JSON list
ALTER TABLE baseline ADD COLUMN sampled_at INTEGER;

CREATE INDEX usage_ended ON usage (ended_at);

-- How fast the gate closed for an online job: `count` times in less than 2^bucket microseconds (last bucket: the rest).
CREATE TABLE latency (
    usage_id INTEGER NOT NULL REFERENCES usage (id) ON DELETE CASCADE,
    bucket   INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    PRIMARY KEY (usage_id, bucket)
) WITHOUT ROWID;

-- Buckets of `step` seconds from `at` (seconds of CLOCK_REALTIME): 10 for a day, then 300.
CREATE TABLE series (
    usage_id            INTEGER NOT NULL REFERENCES usage (id) ON DELETE CASCADE,
    step                INTEGER NOT NULL,
    at                  INTEGER NOT NULL,
    samples             INTEGER NOT NULL,
    busy_ns             INTEGER NOT NULL,
    closed_preempted_ns INTEGER NOT NULL,
    closed_share_ns     INTEGER NOT NULL,
    launches            INTEGER NOT NULL,
    mem_used            INTEGER,           -- largest of the bucket
    PRIMARY KEY (usage_id, step, at)
) WITHOUT ROWID;
CREATE INDEX series_age ON series (step, at);

-- The whole card as NVML sees it, whoever uses it.
CREATE TABLE card_series (
    step         INTEGER NOT NULL,
    at           INTEGER NOT NULL,
    uuid         TEXT    NOT NULL,
    node         TEXT    NOT NULL,
    card_index   INTEGER,                  -- NULL: not a card that qgpu.yaml names
    samples      INTEGER NOT NULL,         -- how many said the utilisation
    util_percent INTEGER,                  -- sum of those samples
    mem_used     INTEGER,                  -- largest of the bucket
    PRIMARY KEY (step, at, uuid)
) WITHOUT ROWID;
