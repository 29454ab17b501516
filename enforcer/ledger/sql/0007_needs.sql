-- SPDX-License-Identifier: Apache-2.0
-- What the job needs if it is run again: `qgpu report` says what to ask for.
ALTER TABLE usage ADD COLUMN mem_refused  INTEGER;  -- most that it would have held with an allocation in `denied`; 0: none
ALTER TABLE usage ADD COLUMN busy_most_ns INTEGER;  -- largest gain of busy_ns in any 10 s
