-- SPDX-License-Identifier: Apache-2.0
-- How long a card did nothing while a job waited for online ones: idle_release.
ALTER TABLE usage ADD COLUMN closed_idle_ns INTEGER;       -- the part of closed_preempted_ns without work on the card
ALTER TABLE baseline ADD COLUMN closed_idle_ns INTEGER;
