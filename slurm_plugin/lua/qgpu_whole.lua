-- SPDX-License-Identifier: Apache-2.0
--
-- Whole cards are counted in the currency of shares: `qgpu:CLASS:100` beside each card, so that
-- billing, limits and reports need no second rule. Slurm counts a typed gres without devices
-- rightly only per node: per job, task or socket it books nothing for the job, and never gives the
-- node's count back (seen on 24.11, docs/adr/0037). So a request in such a spelling gets its number
-- of cards per node as well, which Slurm then has to obey.
local M = {}

local NO_VAL, NO_VAL16 = 4294967294, 65534

local function given(value, unset)
    return type(value) == "number" and value > 0 and value < unset and value or nil
end

local function model_of(entry)
    local first = entry.parts[1]
    return first and not first:find("^[0-9]") and first or nil
end

-- Cards of the entries, and the model if each names the same.
local function asked(entries, q)
    local sum, model = 0, entries[1] and model_of(entries[1])
    for _, entry in ipairs(entries) do
        sum = sum + (q.bytes_of(entry.parts[#entry.parts] or "") or 1)
        if model_of(entry) ~= model then
            model = nil
        end
    end
    return sum, model
end

-- ---- --exclusive: all cards of the node --------------------------------------------------------

-- Calls add(name) for each host of "a1,n[01-12,20]"; false for a list with more brackets.
local function expand(text, add)
    local at = 1
    while at <= #text do
        local head, ranges, tail, stop = text:match("^([^,%[]*)%[([^%]]*)%]([^,%[]*)()", at)
        if not head then
            head, stop = text:match("^([^,%[]*)()", at)
            add(head)
        end
        for low, high in (ranges or ""):gmatch("(%d+)%-?(%d*)") do
            for number = tonumber(low), tonumber(high) or tonumber(low) do
                add(head .. string.format("%0" .. #low .. "d", number) .. tail)
            end
        end
        if stop <= #text and text:sub(stop, stop) ~= "," then
            return false
        end
        at = stop + 1
    end
    return true
end

-- Host -> its group in qgpu.yaml.
local function groups_of(t)
    local found = {}
    for _, group in ipairs(t.nodes) do
        expand(group.names, function(name)
            found[name] = group
        end)
    end
    return found
end

-- Groups in which the nodes of the partitions are, false for nodes without cards; nil if unknown.
local function groups_in(partition, part_list, q, t)
    local groups, found = groups_of(t), {}
    for key, part in pairs(part_list or {}) do
        local name, wanted = part.name or key, partition or ""
        local ours = wanted == "" and part.flag_default == 1
        for _, each in ipairs(q.split(wanted, ",")) do
            ours = ours or each == name
        end
        if ours and not expand(part.nodes or "", function(host)
            found[groups[host] or false] = true
        end) then
            return nil
        end
    end
    return next(found) ~= nil and found or nil
end

-- Cards of a node that a job with --exclusive gets: the least, where nodes differ. 0: unknown, or
-- nodes without cards as well.
local function cards_of_node(job, cards, model, part_list, q, t)
    local found, least = groups_in(job.partition, part_list, q, t), nil
    if not found then
        if cards == 0 then
            return 0
        end
        found = {}
        for _, group in ipairs(t.nodes) do
            found[group] = true
        end
    end
    for group in pairs(found) do
        local fits = group and group.cards >= cards and (not model or model == group.model)
        if fits then
            least = math.min(least or group.cards, group.cards)
        elseif cards == 0 then
            return 0
        end
    end
    return least or cards
end

-- ---- other spellings ---------------------------------------------------------------------------

-- Cards per node, so that each node of the job has as many of `total`, and as many tasks; fixes the
-- job's nodes, to the fewest that it could have where it does not say. nil if it cannot be even.
local function evenly(desc, total, unit, tasks, top)
    local first = math.max(given(desc.min_nodes, NO_VAL) or 1, math.ceil(total / top))
    local last = given(desc.max_nodes, NO_VAL) or first
    for nodes = first, math.min(last, total) do
        local each = total / nodes
        if each % unit == 0 and tasks % nodes == 0 then
            desc.min_nodes, desc.max_nodes = nodes, nodes
            return each, nodes
        end
    end
    return nil
end

local function by_task(desc, count, top)
    local tasks, on_node = given(desc.num_tasks, NO_VAL), given(desc.ntasks_per_node, NO_VAL16)
    if on_node then
        return (not tasks or tasks % on_node == 0) and count * on_node or nil
    end
    tasks = tasks or 1
    local each, nodes = evenly(desc, count * tasks, count, tasks, top)
    if nodes and nodes > 1 then
        desc.ntasks_per_node = tasks / nodes
    end
    return each
end

-- The entry `gpu:N` for each node, of a request per job, task or socket, and N.
local function per_node(desc, job, q, t)
    local of_task = asked(q.parse_entries(job.tres_per_task).gpu, q)
    for _, spelling in ipairs(q.spellings) do
        local name, option = spelling[1], spelling[2]
        local entries = q.parse_entries(job[name]).gpu
        if entries[1] then
            local count, model = asked(entries, q)
            local top, each = q.most_cards(t, model), nil
            top = top > 0 and top or 1
            if entries[2] or not desc then
                each = nil -- of several models, or the shape is not ours to fix
            elseif name == "tres_per_job" then
                each = evenly(desc, count, math.max(of_task, 1), 0, top)
            elseif name == "tres_per_task" then
                each = by_task(desc, count, top)
            elseif given(desc.sockets_per_node, NO_VAL16) then
                each = count * desc.sockets_per_node
            end
            if not each then
                local most = math.min(count, top)
                q.refuse(t, "whole_shape", entries[1].text, {
                    option = option, each = most, nodes = math.ceil(count / most),
                })
            end
            return "gpu:" .. (model and model .. ":" or "") .. string.format("%.0f", each), each
        end
    end
    return nil, 0
end

-- ---- the decision ------------------------------------------------------------------------------

-- Adds the count to a decision for whole cards (q.decide); false without any. `desc` has the
-- shape of a submission, which may be fixed here; nil for an update.
function M.book(desc, job, decision, part_list, q, t)
    if not decision.tag or decision.tag.class then
        return false
    end
    local gres = {}
    for _, piece in ipairs(q.split(decision.gres or job.gres or "", ",")) do
        gres[#gres + 1] = piece ~= "" and q.parse_entry(piece).text or nil
    end
    local entries = q.parse_entries(table.concat(gres, ","))
    local cards, model = asked(entries.gpu, q)
    if entries.shared[1] then
        cards = 1 -- before 23.11.5 a whole card is shard:100
    elseif job.exclusive then
        -- before 23.02 Slurm books all counts of the node for such a job, whatever it asks for
        cards = t.explicit and cards_of_node(job, cards, model, part_list, q, t) or 0
        if decision.tag.node and cards > 0 then
            -- asked for by name, so that nobody takes the count for a request without a card
            gres[#gres + 1], decision.tag.node = "gpu:" .. string.format("%.0f", cards), nil
            decision[t.tag_field] = q.tagged(decision.tag, decision[t.tag_field], t)
        end
    elseif cards == 0 then
        gres[#gres + 1], cards = per_node(desc, job, q, t)
    end
    if cards == 0 then
        return false
    end
    local class = q.guarded(q.job_class, job.qos, "", t)
    gres[#gres + 1] = "qgpu:" .. (class and class .. ":" or "")
        .. string.format("%.0f", 100 * cards)
    decision.gres = table.concat(gres, ",")
    decision.cards, decision.tag.booked = cards, class
    return true
end

-- A job's gres without our count; the class of that, and how many cards it stands for. The gres as
-- it is, where it has none: a share has memory beside its qgpu.
function M.without(gres, q)
    local entries = q.parse_entries(gres)
    local own = entries.qgpu[1]
    if not own or entries.mem[1] then
        return gres
    end
    local left = {}
    for _, piece in ipairs(q.split(gres, ",")) do
        if q.parse_entry(piece).name ~= "qgpu" then
            left[#left + 1] = piece
        end
    end
    local count = (tonumber(own.parts[#own.parts]) or 0) / 100
    local class = #own.parts == 2 and own.parts[1] or nil
    local cards = asked(entries.gpu, q)
    return left[1] and table.concat(left, ",") or nil, class, cards > 0 and count ~= cards
end

return M
