-- SPDX-License-Identifier: Apache-2.0
--
-- The hook of cli_filter.lua, in the user's sbatch, salloc or srun. It is a convenience, never a
-- check: users can bypass it, and job_submit.lua decides. A site's script calls it in one line:
--
--     local qgpu = dofile("/usr/share/qgpu/lua/qgpu_cli_filter.lua")
--     function slurm_cli_pre_submit(options, offset) return qgpu.pre_submit(options, offset) end
--
-- Reason: a step gets only the gres that it names, and the card belongs to shard, which users do
-- not name. So `srun --gres=qgpu:10` also asks for one shard. The number does not matter on the
-- node, where the job's grant counts, and one is always within the job's. A stand-alone srun is
-- allocation and step in one string: job_submit.lua recognises the one `shard:1` (or
-- `shard:MODEL:1`) and replaces it by what the class reserves.
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
local q = dofile(here .. "/qgpu.lua")

-- tables: path of the cluster's tables on a submit host; the rendered cli_filter.lua sets it.
local M = { tables = here .. "/qgpu_tables.lua" }

local GPU_OPTIONS = { "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task",
    "cpus-per-gpu", "gpu-bind", "gpu-freq" }
local UNSET = { [""] = true, unset = true, ["0"] = true, ["(null)"] = true }

local function model_and_share(entry)
    local parts = entry.parts
    if #parts == 1 then
        return nil, parts[1]
    elseif #parts == 2 then
        return parts[1], parts[2]
    end
    return nil, nil
end

-- `gpu:1` of an srun where a whole card is booked as shard:100 (Slurm before 23.11.5); nil for
-- others. Within a job only if that job has such a card.
local function whole_gres(entries, inside, shards)
    local own = entries.gpu[1]
    local count, model = #own.parts > 0 and own.parts[#own.parts] or "1", nil
    if #own.parts == 2 or (#own.parts == 1 and not count:find("^[0-9]+$")) then
        model = own.parts[1]
        count = #own.parts == 2 and count or "1"
    end
    if #own.parts > 2 or entries.gpu[2] or entries.qgpu[1] or entries.mem[1] or entries.shared[1]
        or not count:find("^0*1$") or (inside and shards ~= "100") then
        return nil
    end
    local parts = { model and not inside and "shard:" .. model .. ":100" or "shard:100" }
    for _, entry in ipairs(entries.rest) do
        parts[#parts + 1] = entry.text
    end
    return table.concat(parts, ",")
end

local function number(option)
    return tonumber(tostring(option):match("^%d+"))
end

-- gres of an srun; nil if nothing changes or the tables are unknown. `inside`: within an existing
-- job. `shares`: that job's shards (SLURM_SHARDS_ON_NODE), nil or false if none or unknown. `t`:
-- the cluster's tables, nil if not on this host.
function M.step_gres(gres, inside, shares, t)
    local entries = q.parse_entries(gres)
    local by_shard = t ~= nil and t.whole_by_shard
    if by_shard and entries.gpu[1] then
        return whole_gres(entries, inside, shares)
    end
    local own = entries.qgpu[1]
    if not own or entries.qgpu[2] or entries.shared[1] or entries.gpu[1] then
        return nil
    end
    local model, share = model_and_share(own)
    if not share or not share:find("^[0-9]+$") or #share > 6 then
        return nil -- malformed: job_submit.lua or slurmctld refuses it
    end
    local percent, parts = tonumber(share), {}
    if by_shard and percent == 100 and not entries.mem[1] and (not inside or shares == "100") then
        parts[1] = model and not inside and "shard:" .. model .. ":100" or "shard:100"
    elseif percent >= 100 and percent % 100 == 0 and not entries.mem[1] and not shares then
        parts[1] = "gpu:" .. (model and model .. ":" or "") .. string.format("%.0f", percent / 100)
    else
        -- Within a job the type of qgpu is the class, and the card is chosen: a model could only
        -- fail to match.
        local typed = model and not inside
        parts[1] = "qgpu:" .. share
        parts[2] = typed and "shard:" .. model .. ":1" or "shard:1"
    end
    for _, list in ipairs({ entries.mem, entries.rest }) do
        for _, entry in ipairs(list) do
            parts[#parts + 1] = entry.text
        end
    end
    return table.concat(parts, ",")
end

-- The cluster's tables, nil if not on this host.
local function read_tables()
    local found, t = pcall(dofile, M.tables)
    return found and type(t) == "table" and t.schema == q.schema and t or nil
end

-- Whether job_submit.lua would refuse that gres: it must see the user's own words then. False
-- (unknown) if the tables are not on this host.
local function is_refused(gres, t)
    return t ~= nil
        and not q.decide({ gres = gres, qos = t.qos_names[1], partition = t.partitions[1] }, t)
end

-- Options for whole GPUs: beside them Slurm's client refuses our shard:1 without a reason.
local function asks_for_gpus(options)
    for _, name in ipairs(GPU_OPTIONS) do
        local value = options[name]
        if value and not UNSET[tostring(value)] then
            return true
        end
    end
    return false
end

-- Shards that a task of a step needs to have a card of its own: those of the job on each card,
-- since Slurm puts smaller ones together. 1 where they are unknown. `entries`: what the step asks
-- for.
local function shards_of_card(entries, t)
    local on_node = number(os.getenv("SLURM_SHARDS_ON_NODE"))
    local cards = number(os.getenv("SLURM_TASKS_PER_NODE")) -- with multi_card each task has one
    if on_node and cards and on_node % cards == 0 then
        return on_node / cards
    end
    local mem = entries.mem[1]
    local decision = q.decide({
        gres = entries.qgpu[1].text .. (mem and "," .. mem.text or ""),
        qos = os.getenv("SLURM_JOB_QOS"),
        partition = t.partitions[1],
    }, t)
    return decision and decision.shards or 1
end

-- --tres-per-task of an srun, where shares of several cards are possible (slurm.multi_card): the
-- card belongs to shard there too. nil if nothing changes.
function M.step_tres(tres, inside, t)
    local entries = q.parse_entries(tres)
    local own = entries.qgpu[1]
    if not own or entries.qgpu[2] or entries.shared[1] then
        return nil
    end
    local model = model_and_share(own)
    if inside then
        return string.format("%s,gres/shard:%.0f", tres, shards_of_card(entries, t))
    end
    return tres .. ",gres/shard:" .. (model and model .. ":" or "") .. "1"
end

-- With slurm.multi_card job_submit.lua books shards per task, and a stand-alone srun asks for its
-- step the job's gres per node: no shard, so no card. There the mark goes per task as well. Slurm
-- accepts that only with -n; without it srun has a task for each node. Within a job of several
-- cards each task of a step asks for all `shards` of its card.
local function mark_per_task(options, gres, shards)
    local rest, found = gres, nil
    rest = gres:gsub(",(shard:[^,]+)", function(mark)
        found = mark
        return ""
    end, 1)
    if not found then
        return gres
    end
    local own = options["tres-per-task"]
    local before = type(own) == "string" and own ~= "" and own .. "," or ""
    options["tres-per-task"] = before .. "gres/"
        .. (shards and string.format("shard:%.0f", shards) or found)
    if shards then
        return rest
    end
    local nodes, on_node = number(options.nodes) or 1, number(options["ntasks-per-node"]) or 1
    -- srun says 1 without -n
    options.ntasks = string.format("%d", math.max(number(options.ntasks) or 1, nodes * on_node, 1))
    return rest
end

-- Whether a step has several tasks on a node of a job with several cards of each.
local function several_tasks(options)
    local nodes = number(options.nodes) or number(os.getenv("SLURM_JOB_NUM_NODES")) or 1
    return (number(os.getenv("SLURM_TASKS_PER_NODE")) or 1) > 1
        and (number(options.ntasks) or 1) > nodes
end

-- Slurm's client refuses the old word for vram before anybody else sees it, without a reason.
local function old_word(options)
    for _, name in ipairs({ "gres", "tres-per-task" }) do
        for _, entry in ipairs(q.parse_entries(options[name] or "").rest) do
            if entry.name == "qgpu_mem" then
                return entry.text, "vram" .. entry.text:sub(#entry.name + 1)
            end
        end
    end
    return nil
end

function M.pre_submit(options, _)
    local old, new = old_word(options)
    if old then
        slurm.log_error("%s", "qgpu: " .. old .. " is refused: the memory of a share is called"
            .. " vram; write " .. new .. " in its place.")
        return slurm.ERROR
    end
    if options.type ~= "srun" then
        return slurm.SUCCESS
    end
    local several = not options.gres and read_tables()
    local tres = several and several.multi_card and options["tres-per-task"]
    local in_job = os.getenv("SLURM_JOB_ID") ~= nil
    local changed = type(tres) == "string" and M.step_tres(tres, in_job, several)
    if changed then
        options["tres-per-task"] = changed
    end
    if not options.gres then
        if in_job and os.getenv("QGPU_STEP_GRES") == "none" and not options["tres-per-task"]
            and not asks_for_gpus(options) then
            options.gres = "none" -- the job named no card (job_submit.lua, mark_steps)
        end
        return slurm.SUCCESS
    end
    local inside = os.getenv("SLURM_JOB_ID") ~= nil or tostring(options.jobid):find("^%d+$") ~= nil
    local t = read_tables()
    if not inside and (asks_for_gpus(options) or is_refused(options.gres, t)) then
        return slurm.SUCCESS
    end
    local exclusive = tostring(options.exclusive)
    if not inside and t and t.whole_by_shard
        and (exclusive == "exclusive" or exclusive == "true") then
        t = nil -- a job with --exclusive holds whole cards as such
    end
    local gres = M.step_gres(options.gres, inside, inside and os.getenv("SLURM_SHARDS_ON_NODE"), t)
    if gres and t and t.multi_card and (not inside or several_tasks(options)) then
        local shards = inside and shards_of_card(q.parse_entries(options.gres), t)
        gres = mark_per_task(options, gres, shards)
    end
    if gres then
        options.gres = gres
    end
    return slurm.SUCCESS
end

return M
