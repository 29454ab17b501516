-- SPDX-License-Identifier: Apache-2.0
--
-- Host memory of jobs whose GPU memory may be taken back: it lies in the job's own processes then,
-- under Slurm's limit of the job. So the job's memory request grows by the caps of its cards on a
-- node. The tag keeps what was added (docs/specs/tag.md), so that no update adds it twice.
local M = {}

local NO_VAL, NO_VAL16 = 4294967294, 65534
-- Fields of an update after which a node may have fewer CPUs of the job.
local SHAPE = { "num_tasks", "min_nodes", "max_nodes", "cpus_per_task", "ntasks_per_node" }

local function given(value, unset)
    return type(value) == "number" and value > 0 and value < unset
end

-- CPUs that a submission has at least on each of its nodes.
local function least_cpus(job_desc)
    local nodes = given(job_desc.max_nodes, NO_VAL) and job_desc.max_nodes
    local most = given(job_desc.ntasks_per_node, NO_VAL16) and job_desc.ntasks_per_node
    local tasks = given(job_desc.num_tasks, NO_VAL) and job_desc.num_tasks
    local each = given(job_desc.cpus_per_task, NO_VAL16) and job_desc.cpus_per_task or 1
    -- With no fixed number of nodes a node may have one task; with -n, tasks per node are a bound.
    local least = 1
    if tasks and nodes == 1 then
        least = tasks
    elseif most and (not tasks or (nodes and tasks >= most * nodes)) then
        least = most
    end
    local cpus = least * each
    if given(job_desc.min_cpus, NO_VAL) then
        cpus = math.min(cpus, job_desc.min_cpus) -- --overcommit
    end
    if given(job_desc.pn_min_cpus, NO_VAL16) then
        cpus = math.max(cpus, job_desc.pn_min_cpus)
    end
    return cpus
end

-- "cpu" or "node", and MiB of it; 0 is all memory of the node. nil: the record says nothing.
local function asked(record)
    local each = record.min_mem_per_cpu
    if each and each > 0 then
        return "cpu", each
    end
    return (each or record.min_mem_per_node) and "node", each or record.min_mem_per_node
end

-- The same of a job without --mem: the partition's default, else the cluster's.
local function by_default(part, t)
    if part and (part.def_mem_per_cpu or 0) > 0 then
        return "cpu", part.def_mem_per_cpu
    elseif part and (part.def_mem_per_node or 0) > 0 then
        return "node", part.def_mem_per_node
    end
    return t.host_default.per, t.host_default.mib
end

-- What of `cap` goes to the unit that counts.
local function part_of(cap, cpus)
    return math.ceil(cap / (cpus or 1))
end

-- MiB of host memory that a job can have on some node; huge where nothing says it.
local function most_host(model, part, t)
    local most = 0
    for name, card in pairs(t.models) do
        if not model or model == name then
            most = math.max(most, card.host or math.huge)
        end
    end
    local bound = part and part.max_mem_per_node
    return bound and bound > 0 and math.min(most, bound) or most
end

local function check(decision, cap, own, total, part, q, t)
    local limit = most_host(decision.model, part, t)
    if total > limit then
        local tag = decision.tag
        local words = { cap = cap, own = own, limit = limit, room = limit - cap, share = tag.share }
        local key = cap < limit and "host_high" or "host_never"
        q.refuse(t, key, "qgpu:" .. string.format("%.0f", tag.share), words)
    end
end

local function reclaimable(tag, t)
    return tag and tag.class and t.reclaimable and t.reclaimable[tag.class]
end

-- Add the caps of a share to `own` MiB per `per`. Sets decision.host, which is what to write, and
-- the tag's record of it.
local function grow(decision, per, own, cpus, part, q, t)
    local tag = decision.tag
    local cap = tag.mem * (tag.cards or 1)
    if own == 0 then
        tag.host, tag.host_cpus = 0, nil -- all memory of the node
    else
        tag.host, tag.host_cpus = cap, per == "cpu" and cpus or nil
        local more = part_of(cap, tag.host_cpus)
        decision.host = { per = per, own = own, mib = own + more, cap = cap }
        local count = tag.host_cpus or 1
        check(decision, cap, own * count, (own + more) * count, part, q, t)
    end
    decision[t.tag_field] = q.tagged(tag, decision[t.tag_field], t)
end

local function partition_of(name, part_list)
    name = (name or ""):match("^[^,]+")
    for key, part in pairs(part_list or {}) do
        if (name and (part.name or key) == name) or (not name and part.flag_default == 1) then
            return part
        end
    end
    return nil
end

-- A submission: add the host memory to its decision (q.decide, after cards.spread).
function M.add(job_desc, part_list, decision, q, t)
    if not reclaimable(decision.tag, t) then
        return false
    end
    local part = partition_of(job_desc.partition, part_list)
    local per, own = asked(job_desc)
    if not per then
        per, own = by_default(part, t)
    end
    grow(decision, per, own, least_cpus(job_desc), part, q, t)
    return true
end

-- What the tag in a job's field says was added: MiB and, where it counts per CPU, their number.
function M.of_tag(field)
    local tag = (field or ""):match("^qgpu/1 class=[^;]*")
    local mib, cpus = (tag or ""):match(" host=(%d+)/?(%d*)$")
    return tonumber(mib), tonumber(cpus)
end

-- Whether an update changes the memory of a job, or the CPUs that it is counted by.
function M.concerns(job_desc, tag)
    if not tag or not tag.class then
        return false
    end
    if asked(job_desc) then
        return true
    end
    local shape = given(job_desc.min_cpus, NO_VAL) or given(job_desc.pn_min_cpus, NO_VAL16)
    for _, name in ipairs(SHAPE) do
        shape = shape or given(job_desc[name], NO_VAL16)
    end
    return tag.host_cpus ~= nil and shape
end

-- CPUs of a waiting job on a node, at least, after an update.
local function left_cpus(job_desc, job_rec, tag)
    local cpus = tag.host_cpus
    for _, name in ipairs(SHAPE) do
        if given(job_desc[name], NO_VAL16) then
            return 1
        end
    end
    if not cpus then
        cpus = given(job_rec.pn_min_cpus, NO_VAL16) and job_rec.pn_min_cpus or 1
        if job_rec.max_nodes == 1 and given(job_rec.min_cpus, NO_VAL) then
            cpus = math.max(cpus, job_rec.min_cpus)
        end
    end
    for _, name in ipairs({ "min_cpus", "pn_min_cpus" }) do
        if given(job_desc[name], NO_VAL16) then
            cpus = math.min(cpus, job_desc[name])
        end
    end
    return cpus
end

-- What the job itself asked for: the update's words, else the job's without what was added. An
-- update with the very number that scontrol shows changes nothing.
local function own_of(job_desc, job_rec, tag, q, t)
    local said, value = asked(job_desc)
    local per, own = asked(job_rec)
    if said and (said ~= per or value ~= own) then
        return said, value
    end
    if not per then
        return "node", 0
    end
    if own > 0 and (tag.host or 0) > 0 then
        own = own - part_of(tag.host, tag.host_cpus)
        if own <= 0 or (per == "cpu") ~= (tag.host_cpus ~= nil) then
            q.refuse(t, "host_changed", "", { job = tostring(job_rec.job_id or "") })
        end
    end
    return per, own
end

-- An update of a waiting job that had `tag`: the memory that goes with its new decision, which may
-- have the same tag.
function M.change(job_desc, job_rec, part_list, tag, decision, q, t)
    tag = tag or {}
    local now = decision.tag == tag or reclaimable(decision.tag, t)
    if not now and not tag.host then
        return false
    end
    local per, own = own_of(job_desc, job_rec, tag, q, t)
    if now then
        local name = job_desc.partition ~= "" and job_desc.partition or job_rec.partition
        local part = partition_of(name, part_list)
        grow(decision, per, own, left_cpus(job_desc, job_rec, tag), part, q, t)
    elseif own > 0 then
        decision.host = { per = per, own = own, mib = own, cap = 0 }
    end
    return true
end

-- Write the request; returns the sentence about it, nil if the job's own request stands.
function M.write(job_desc, decision, q, t)
    local host = decision.host
    if not host then
        return nil
    end
    job_desc["min_mem_per_" .. host.per] = host.mib
    if host.cap == 0 then
        return nil
    end
    local words = { own = host.own, mib = host.mib, what = host.per == "cpu" and "CPU" or host.per }
    return q.sentence(t, "host_grows", "", words)
end

return M
