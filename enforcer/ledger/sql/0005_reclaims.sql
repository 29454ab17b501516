-- SPDX-License-Identifier: Apache-2.0
-- When a job's memory left a card for other jobs, and when it was back.
ALTER TABLE usage ADD COLUMN reclaimed_ns INTEGER;   -- how long its memory was away, until the last poll
CREATE TABLE reclaims (
    job_id     INTEGER NOT NULL,
    uuid       TEXT    NOT NULL,
    granted_at INTEGER NOT NULL,
    left_at    INTEGER NOT NULL,   -- when its gates closed
    back_at    INTEGER,            -- when they opened, or the job ended; NULL: it is away
    bytes      INTEGER,            -- what it held on the card
    leave_ns   INTEGER,            -- duration of the operation; NULL: nothing was moved yet
    return_ns  INTEGER,
    why        TEXT    NOT NULL,   -- for which job
    result     TEXT,               -- returned, undone, ended, or unable and the step that failed
    PRIMARY KEY (job_id, uuid, granted_at, left_at),
    FOREIGN KEY (job_id, uuid, granted_at) REFERENCES usage (job_id, uuid, granted_at)
        ON DELETE CASCADE
) WITHOUT ROWID;
