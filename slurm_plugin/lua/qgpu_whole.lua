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

local function typed(model, count)
    return "gpu:" .. (model and model .. ":" or "") .. string.format("%.0f", count)
end

-- Cards of the entries, and the model if each names the same. Of one model the last entry counts,
-- because Slurm reads them so (26.05: `h200:1,h200:2` are two cards).
local function asked(entries, q)
    local sum, model, of_model = 0, entries[1] and model_of(entries[1]), {}
    for _, entry in ipairs(entries) do
        local name, count = model_of(entry), q.bytes_of(entry.parts[#entry.parts] or "") or 1
        sum = sum + count - (of_model[name or ""] or 0)
        of_model[name or ""] = count
        if name ~= model then
            model = nil
        end
    end
    return sum, model
end

-- The partitions of a job in slurmctld's list.
local function parts_of(partition, part_list, q)
    local found, wanted = {}, partition or ""
    for key, part in pairs(part_list or {}) do
        local ours = wanted == "" and part.flag_default == 1
        for _, each in ipairs(q.split(wanted, ",")) do
            ours = ours or each == (part.name or key)
        end
        found[#found + 1] = ours and part or nil
    end
    return found
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
    for _, part in ipairs(parts_of(partition, part_list, q)) do
        if not expand(part.nodes or "", function(host)
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

-- The number of --ntasks-per-gpu, nil without.
function M.per_card(desc)
    return given(desc.ntasks_per_tres, NO_VAL16)
end

-- CPUs and nodes of the job's partitions: the least of each, CPUs of a node on average; nil nodes
-- if unknown.
local function room(partition, part_list, q)
    local cpus, nodes = math.huge, nil
    for _, part in ipairs(parts_of(partition, part_list, q)) do
        local count = given(part.total_nodes, NO_VAL)
        if count and given(part.total_cpus, NO_VAL) then
            local most = given(part.max_cpus_per_node, NO_VAL) or math.huge
            cpus = math.min(cpus, part.total_cpus / count, most)
            nodes = math.min(nodes or count, count)
        end
    end
    return cpus, nodes
end

-- The number of a text like `gres/gpu:4`, of --cpus-per-gpu and --mem-per-gpu.
local function number_of(text, q)
    local entry = q.parse_entries(text).gpu[1]
    return entry and tonumber(entry.parts[#entry.parts])
end

-- Nodes that `count` pieces of `size` need, where a node has `space`; 1 if it has not even one.
local function nodes_for(count, size, space)
    local fit = math.floor(space / (size or 0))
    return fit > 0 and math.max(1, math.ceil(count / fit)) or 1
end

-- The fewest nodes that have the CPUs and, where qgpu.yaml says it, the memory of a job with
-- `total` cards.
local function fewest(desc, job, total, cpus, q, t)
    local tasks, of_task = given(desc.num_tasks, NO_VAL) or 1, given(desc.cpus_per_task, NO_VAL16)
    local memory = 0
    of_task = of_task or 1
    for _, card in pairs(t.models) do
        memory = math.max(memory, card.host or math.huge)
    end
    return math.max(
        given(desc.min_nodes, NO_VAL) or 1,
        nodes_for(tasks, 1, given(desc.ntasks_per_node, NO_VAL16) or math.huge),
        nodes_for(tasks, of_task, cpus),
        nodes_for(tasks, of_task * (given(desc.min_mem_per_cpu, math.huge) or 0), memory),
        nodes_for(total, number_of(job.cpus_per_tres, q), cpus),
        nodes_for(total, number_of(job.mem_per_tres, q), memory)
    )
end

-- Cards per node, so that each node of the job has as many of want.total, and as many tasks. Fixes
-- the job's nodes, to the fewest that it could have where it does not say; nil if none is even.
local function evenly(desc, want)
    local low = given(desc.min_nodes, NO_VAL) or 1
    local first = math.max(low, math.ceil(want.total / want.top))
    local last = given(desc.max_nodes, NO_VAL) or math.max(first, want.least, want.most or 1)
    if want.least <= last then
        first = math.max(first, want.least) -- else Slurm itself says that it has no such nodes
    end
    for nodes = first, math.min(last, want.total) do
        local each = want.total / nodes
        if each % want.unit == 0 and want.tasks % nodes == 0 then
            desc.min_nodes, desc.max_nodes = nodes, nodes
            return each, nodes
        end
    end
    return nil
end

local function by_task(desc, want)
    local on_node = given(desc.ntasks_per_node, NO_VAL16)
    if on_node then
        local even = not given(desc.num_tasks, NO_VAL) or want.tasks % on_node == 0
        return even and want.unit * on_node or nil
    end
    local each, nodes = evenly(desc, want)
    if nodes and nodes > 1 then
        desc.ntasks_per_node = want.tasks / nodes
    end
    return each
end

-- Refuses by a request that can be typed in place of the option, beside the job's other words.
local function refuse_shape(desc, want, entry, option, model, q, t)
    local nodes = math.min(given(desc.max_nodes, NO_VAL) or want.most or math.huge,
        math.max(math.ceil(want.total / want.top), want.least))
    local each = math.max(1, math.min(want.top, math.ceil(want.total / nodes)))
    local count = #entry.parts > 0 and table.concat(entry.parts, ":") or "1"
    q.refuse(t, "whole_shape", option .. "=" .. count, {
        nodes = nodes, gres = typed(model, each),
    })
end

local OPTION = { tres_per_task = "--gpus-per-task" }

-- The entry `gpu:N` for each node, of a request per job, task or socket, and N. No entry for a
-- request per job of one node, because Slurm looks at Links= only for that spelling (24.11, 26.05).
local function per_node(desc, job, part_list, q, t)
    local of_task = asked(q.parse_entries(job.tres_per_task).gpu, q)
    local cpus, most = room(job.partition, part_list, q)
    for _, spelling in ipairs(q.spellings) do
        local name = spelling[1]
        local entries = q.parse_entries(job[name]).gpu
        if entries[1] then
            local count, model = asked(entries, q)
            local tasks = given(desc.num_tasks, NO_VAL) or given(desc.ntasks_per_node, NO_VAL16)
                or 1
            local top, each, nodes = math.max(q.most_cards(t, model), 1), nil, nil
            local want = { total = count, unit = 1, tasks = 0, top = top, most = most }
            if name == "tres_per_job" then
                want.unit = math.max(of_task, 1)
            elseif name == "tres_per_task" then
                want.total, want.unit, want.tasks = count * tasks, count, tasks
            end
            want.least = fewest(desc, job, want.total, cpus, q, t)
            if name == "tres_per_job" and count < want.least and of_task == 0 then
                -- fewer cards than nodes: Slurm gives each node one
                want.total = want.least
            end
            if not model and entries[2] then
                each = nil -- of several models
            elseif name == "tres_per_job" then
                each, nodes = evenly(desc, want)
                if each and want.total > count then
                    desc.tres_per_job = "gres/" .. typed(model, want.total)
                end
            elseif name == "tres_per_task" then
                each = by_task(desc, want)
            elseif given(desc.sockets_per_node, NO_VAL16) then
                each = count * desc.sockets_per_node
            end
            if not each then
                local entry, option = entries[1], OPTION[name] or spelling[2]
                if job.of_tasks then
                    entry, option = { parts = { job.of_tasks } }, "--ntasks-per-gpu"
                end
                refuse_shape(desc, want, entry, option, model, q, t)
            end
            return (nodes ~= 1 or job.of_tasks) and typed(model, each) or nil, each
        end
    end
    return nil, 0
end

-- ---- tasks for each card -----------------------------------------------------------------------

local function named(job, q)
    local found = q.parse_entries(job.gres).gpu[1]
    for _, spelling in ipairs(q.spellings) do
        found = found or q.parse_entries(job[spelling[1]]).gpu[1]
    end
    return found ~= nil
end

-- `--ntasks-per-gpu=2 -n4` alone: after job_submit Slurm makes two cards per job of it, which would
-- be counted nowhere.
function M.of_tasks(desc, job, q)
    local each, tasks = M.per_card(desc), given(desc.num_tasks, NO_VAL)
    if each and tasks and not named(job, q) then
        local own = job.tres_per_job and job.tres_per_job ~= "" and job.tres_per_job .. "," or ""
        job.tres_per_job = own .. "gres/" .. typed(nil, math.ceil(tasks / each))
        job.of_tasks = string.format("%.0f", each)
    end
end

-- Tasks per card become tasks per node, since Slurm applies the number to our count too, and then
-- finds no node.
local function fix_tasks(desc, job, cards)
    local each = M.per_card(desc)
    if not each then
        return
    end
    desc.ntasks_per_tres = NO_VAL16
    if job.exclusive and not desc.gres and job.tres_per_job then
        desc.tres_per_job = job.tres_per_job
    end
    local nodes, on_node = given(desc.min_nodes, NO_VAL) or 1, each * cards
    local tasks = given(desc.num_tasks, NO_VAL)
    if tasks ~= on_node and not job.exclusive and not given(desc.ntasks_per_node, NO_VAL16) then
        desc.ntasks_per_node = on_node
    end
    desc.num_tasks = tasks or on_node * nodes
end

-- An update of a waiting job whose whole cards stand per job, task or socket, and are fixed per
-- node: other nodes, tasks or cards would contradict that.
function M.check_update(desc, job, now, changed, q, t)
    if not now.tag or now.tag.class or now.alone then
        return
    end
    for _, name in ipairs({ "min_nodes", "max_nodes", "num_tasks" }) do
        changed = changed or given(desc[name], NO_VAL)
    end
    changed = changed or given(desc.ntasks_per_node, NO_VAL16)
    if changed then
        for _, spelling in ipairs(q.spellings) do
            if q.parse_entries(job[spelling[1]]).gpu[1] then
                q.refuse(t, "whole_update", "", { job = tostring(now.id or "") })
            end
        end
    end
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
    local own = cards
    if entries.shared[1] then
        cards = 1 -- before 23.11.5 a whole card is shard:100
    elseif job.exclusive then
        -- before 23.02 Slurm books all counts of the node for such a job, whatever it asks for
        cards = t.explicit and cards_of_node(job, cards, model, part_list, q, t) or 0
        if decision.tag.node and cards > 0 then
            -- asked for by name, so that nobody takes the count for a request without a card
            gres[#gres + 1], decision.tag.node = "gpu:" .. string.format("%.0f", cards), nil
            decision.unnamed = true
            decision[t.tag_field] = q.tagged(decision.tag, decision[t.tag_field], t)
        end
    elseif cards == 0 then
        if not desc and named(job, q) then
            q.refuse(t, "whole_update", "", { job = tostring(job.id or "") })
        end
        local entry
        entry, cards = per_node(desc or {}, job, part_list, q, t)
        gres[#gres + 1] = entry
    end
    if cards == 0 then
        return false
    end
    if desc then
        fix_tasks(desc, job, job.exclusive and math.max(own, 1) or cards)
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
