-- SPDX-License-Identifier: Apache-2.0
--
-- What `qgpu plan` is told of a submission: it calls `sbatch --test-only` with QGPU_PLAN=1, which
-- our SPANK plugin puts into the job's SPANK environment. So slurmctld itself says what it would
-- book, with this user's QOS and this partition's defaults, and nothing is guessed a second time.
-- Lines of the form "plan NAME=VALUE", which cli/site/slurm_answer.py reads.
local M = {}

local NO_VAL, NO_VAL16 = 4294967294, 65534

local function count(value, unset)
    return type(value) == "number" and value > 0 and value < unset and value or nil
end

-- The names and values in a fixed order. `tag` is the text of decision.tag.
function M.lines(job_desc, decision, tag)
    local host = decision.host or {}
    local found = {
        { "gres", decision.gres or job_desc.gres },
        { "qos", decision.qos or job_desc.qos },
        { "tag", tag },
        { "model", decision.model },
        { "shards", decision.shards or 0 }, -- always there, so that plan knows that qgpu answered
        { "cards", decision.cards },
        { "host_per", host.per },
        { "host_own", host.own },
        { "host_mib", host.mib },
        { "tres_per_task", decision.per_task and job_desc.tres_per_task or nil },
        { "tasks", count(job_desc.num_tasks, NO_VAL) },
        { "tasks_per_node", count(job_desc.ntasks_per_node, NO_VAL16) },
        { "nodes", count(job_desc.min_nodes, NO_VAL) },
    }
    local lines = {}
    for _, pair in ipairs(found) do
        local key, value = pair[1], pair[2]
        if value ~= nil then
            local text = type(value) == "number" and string.format("%.0f", value) or value
            lines[#lines + 1] = "plan " .. key .. "=" .. text:gsub("%c", "?")
        end
    end
    return lines
end

return M
