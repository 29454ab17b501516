-- SPDX-License-Identifier: Apache-2.0
--
-- How long the texts of a job may be. slurmctld calls job_submit under its locks, and before its
-- own tests of lengths: a long text must cost nothing but its copy. And slurmd puts the job's SPANK
-- environment into that of Prolog and Epilog. Where the kernel refuses that, the node is drained.
local M = {}

-- The kernel takes 128 KiB of arguments and environment, whatever the limit of the stack. Half of
-- that is Slurm's.
local MAX_SPANK_BYTES = 65536
local MAX_SPANK_LINES = 256

local FIELDS = {
    { "gres", "--gres" },
    { "tres_per_job", "--gpus" },
    { "tres_per_task", "--tres-per-task" },
    { "tres_per_socket", "--gpus-per-socket" },
    { "cpus_per_tres", "--cpus-per-gpu" },
    { "mem_per_tres", "--mem-per-gpu" },
    { "tres_bind", "--gpu-bind" },
    { "tres_freq", "--gpu-freq" },
    { "qos", "--qos" },
    { "partition", "--partition" },
    { "comment", "--comment" },
}

local function check_text(text, option, q, t)
    if type(text) == "string" and #text > q.max_field_bytes then
        q.refuse(t, "field_long", option, { bytes = #text, limit = q.max_field_bytes })
    end
end

-- Refuse a text that is longer than Slurm takes: of a submission or an update.
function M.check_texts(job_desc, q, t)
    for _, field in ipairs(FIELDS) do
        check_text(job_desc[field[1]], field[2], q, t)
    end
    -- it exists since 23.02
    check_text(t.has_extra and job_desc.extra or nil, "--extra", q, t)
end

-- Slurm 22.05 gives a job the request's `extra` without a copy, and frees it with the request and
-- with the job: one such job of anybody's own client ends slurmctld. It uses the text for nothing.
function M.drop_extra(job_desc, t)
    if not t.has_extra and job_desc.extra ~= nil then
        job_desc.extra = "" -- Slurm frees it and has none then
    end
end

-- The SPANK environment of a submission, as a list; refuse what no Prolog could be started with.
function M.spank(job_desc, q, t)
    local count = job_desc.spank_job_env_size
    -- before it is read: Slurm makes a table of it
    if type(count) == "number" and count > MAX_SPANK_LINES then
        q.refuse(t, "spank_many", "", { lines = count, limit = MAX_SPANK_LINES })
    end
    local lines, bytes = {}, 0
    for _, line in pairs(job_desc.spank_job_env or {}) do
        lines[#lines + 1] = tostring(line)
        bytes = bytes + #lines[#lines] + 1
    end
    if bytes > MAX_SPANK_BYTES then
        q.refuse(t, "spank_long", "", { bytes = bytes, limit = MAX_SPANK_BYTES })
    end
    return lines
end

return M
