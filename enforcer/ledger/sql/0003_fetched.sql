-- SPDX-License-Identifier: Apache-2.0
-- Whether a task took the grant from the SPANK plugin: 1 or 0 once it has ended, NULL where that is not known.
ALTER TABLE usage ADD COLUMN fetched INTEGER;
