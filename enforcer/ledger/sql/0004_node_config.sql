-- SPDX-License-Identifier: Apache-2.0
-- Which qgpu.yaml each node had when it was collected, for qgpu doctor on the controller; empty on a node.
CREATE TABLE node_config (
    node   TEXT    NOT NULL PRIMARY KEY,
    sha256 TEXT    NOT NULL,
    at     INTEGER NOT NULL            -- when it was collected, seconds of CLOCK_REALTIME
) WITHOUT ROWID;
