-- SPDX-License-Identifier: Apache-2.0
--
-- Shares on clusters where a job may have equal parts of several cards of a node (slurm.multi_card,
-- Slurm 24.05 and later). There slurmctld has MULTIPLE_SHARING_GRES_PJ: it splits a request per
-- node over two cards if no single card has enough. It never splits a request per task. So each
-- share there is one per task, one task per card, never two tasks of a job on one card
-- (docs/adr/0015, seen live on 24.11 and 26.05).
local M = {}

local NO_VAL, NO_VAL16 = 4294967294, 65534

local function given(value, unset)
    return type(value) == "number" and value > 0 and value < unset
end

-- Tasks per node that the user fixed, nil if open; and the number of nodes.
local function shape(job_desc)
    local nodes = given(job_desc.min_nodes, NO_VAL) and job_desc.min_nodes or 1
    if given(job_desc.ntasks_per_node, NO_VAL16) then
        return job_desc.ntasks_per_node, nodes
    elseif given(job_desc.num_tasks, NO_VAL) then
        return job_desc.num_tasks / nodes, nodes
    end
    return nil, nodes
end

local function times(entry, count)
    local last = entry.parts[#entry.parts]
    return (entry.text:gsub("[0-9]+([A-Za-z]*)$", function(suffix)
        return string.format("%.0f", tonumber(last:match("^[0-9]+")) * count) .. suffix
    end))
end

local function words_of(cards, tasks)
    return { cards = cards, what = string.format("%g", tasks or 0) }
end

local function check(job_desc, decision, cards, q, t)
    local share = decision.tag.share
    local request = "qgpu:" .. string.format("%.0f", share)
    if cards > 1 and not t.multi_card then
        q.refuse(t, "cards_never", request, words_of(cards))
    end
    local top = q.most_cards(t, decision.model)
    if cards > top then
        q.refuse(t, "cards_few", request, { cards = cards, top = top, share = share })
    end
    local tasks, nodes = shape(job_desc)
    -- Clients say one task for a job without -n; for several cards it becomes one for each.
    if tasks and tasks ~= cards and tasks * nodes > 1 then
        q.refuse(t, "cards_tasks", request, words_of(cards, tasks))
    end
    return nodes
end

local OURS = { qgpu = true, vram = true, shard = true, mps = true }

-- The entries of a TRES string that are not ours, as the user wrote them; nil if none.
function M.rest_of(tres, q)
    local rest = {}
    for piece in (tres or ""):gmatch("[^,]+") do
        if not OURS[q.parse_entry(piece).name] then
            rest[#rest + 1] = piece
        end
    end
    return rest[1] and table.concat(rest, ",") or nil
end

-- The binding that clients write beside --tres-per-task, `gres/qgpu:per_task:30+...`, without our
-- gres; nil if nothing is left.
local function bind_of(bind, q)
    local rest = {}
    for piece in (bind or ""):gmatch("[^+]+") do
        local entry = q.parse_entry(piece)
        if not (OURS[entry.name] and entry.parts[1] == "per_task") then
            rest[#rest + 1] = piece
        end
    end
    return rest[1] and table.concat(rest, "+") or nil
end

-- `gres/shard:1` per task beside --gres=qgpu:N: our cli_filter adds it for a stand-alone srun of
-- one task. Its step takes the job's gres per node, which has no shard here, and would get no card.
-- The job itself gets its own shards.
local function is_mark(entries)
    local own = entries.shared[1]
    return own and not entries.shared[2] and not entries.qgpu[1] and not entries.mem[1]
        and own.name == "shard" and own.parts[#own.parts] == "1"
end

-- A stand-alone srun of several cards: job and step come in one string. Slurm would put all tasks
-- of the step on the first card (seen on 24.11 and 26.05), or refuse the step with an obscure
-- message.
local function refuse_alone(job_desc, entries, cards, q, t)
    local _, nodes = shape(job_desc)
    local mem = entries.mem[1]
    local words = { tasks = (tonumber(cards) or 1) * nodes, nodes = nodes }
    words.each = "gres/" .. entries.qgpu[1].text .. (mem and ",gres/" .. mem.text or "")
    q.refuse(t, "cards_srun", entries.qgpu[1].text, words)
end

-- `--tres-per-task=gres/qgpu:30` with K tasks per node means `--gres=qgpu:30 --qgpu-cards=K`.
-- Changes the submission (strings of read_submission) so, and returns K as text; else `said`.
function M.native(job_desc, job, said, q, t)
    local own = q.parse_entries(job.gres)
    if t.multi_card and own.qgpu[1] and is_mark(q.parse_entries(job.tres_per_task)) then
        if (tonumber(said or "1") or 1) > 1 then
            refuse_alone(job_desc, own, said, q, t)
        end
        job.tres_per_task = M.rest_of(job.tres_per_task, q)
        job.tres_bind = bind_of(job.tres_bind, q)
    end
    local found = t.multi_card and q.parse_entries(job.tres_per_task)
    if not found or not found.qgpu[1] or q.parse_entries(job.gres).qgpu[1] then
        return said
    end
    local tasks = shape(job_desc) or 1
    local text = string.format("%g", tasks)
    if tasks % 1 ~= 0 or (said and said ~= text) then
        q.refuse(t, "cards_tasks", found.qgpu[1].text, { cards = said or 2, what = text })
    end
    -- the mark of our cli_filter
    if found.shared[1] then
        refuse_alone(job_desc, found, text, q, t)
    end
    local gres = { job.gres and job.gres ~= "" and job.gres or nil }
    for _, list in ipairs({ found.qgpu, found.mem, found.shared }) do
        for _, entry in ipairs(list) do
            gres[#gres + 1] = entry.text
        end
    end
    job.gres, job.tres_per_task = table.concat(gres, ","), M.rest_of(job.tres_per_task, q)
    job.tres_bind = bind_of(job.tres_bind, q)
    return text
end

-- The decision for a share (q.decide) on `said` cards of each node; false: unchanged. Sets the
-- job's shape.
function M.spread(job_desc, decision, said, q, t)
    local tres_per_task = job_desc.tres_per_task
    local share = decision.tag and decision.tag.class
    local cards = tonumber((said or "1"):match("^%d+$") or "") -- Lua itself also reads 0x2 and 1e0
    if not share then
        if cards and cards > 1 then
            q.refuse(t, "cards_whole", "--qgpu-cards=" .. said, words_of(cards))
        end
        return false
    end
    if not cards or cards < 1 or cards > 16 then
        q.refuse(t, "cards_never", "--qgpu-cards", words_of(2))
    end
    if cards == 1 and not t.multi_card then
        return false
    end
    local nodes = check(job_desc, decision, cards, q, t)
    local entries, own, shard = q.parse_entries(decision.gres), {}, nil
    for _, entry in ipairs(entries.shared) do
        shard = entry.text
    end
    for _, list in ipairs({ entries.qgpu, entries.mem }) do
        for _, entry in ipairs(list) do
            own[#own + 1] = times(entry, cards)
        end
    end
    for _, entry in ipairs(entries.rest) do
        own[#own + 1] = entry.text
    end
    decision.gres = table.concat(own, ",")
    decision.tag.cards = cards > 1 and cards or nil
    decision[t.tag_field] = q.tagged(decision.tag, decision[t.tag_field], t)
    job_desc.tres_per_task = table.concat({ "gres/" .. shard, M.rest_of(tres_per_task, q) }, ",")
    -- sbatch put it into the job's environment too, where srun would read it.
    local environment = job_desc.environment
    if environment and environment.SLURM_TRES_PER_TASK then
        environment.SLURM_TRES_PER_TASK = job_desc.tres_per_task
    end
    if job_desc.tres_bind then
        job_desc.tres_bind = "" -- the client's binding; each step binds anew
    end
    job_desc.ntasks_per_node = cards
    job_desc.num_tasks = cards * nodes
    job_desc.bitflags = M.with_flag(job_desc.bitflags, slurm.GRES_ONE_TASK_PER_SHARING)
    return true
end

-- The tag of a job whose gres per node (a sum over its cards) reads as `tag`; `field` has its
-- present tag, which only we write. Without this a new comment would promise one card the sum of
-- several.
function M.of_each(tag, field)
    local cards = tonumber((field or ""):match("^qgpu/1 class=%a+ share=%d+ mem=%d+ cards=(%d+)"))
    if not cards or cards < 2 or tag.share % cards ~= 0 or tag.mem % cards ~= 0 then
        return tag
    end
    return { class = tag.class, share = tag.share / cards, mem = tag.mem / cards, cards = cards }
end

-- A waiting job with shards per task is not decided again: its counts have another shape by now.
function M.check_update(job_rec, q, t)
    if t.multi_card and q.parse_entries(job_rec.tres_per_task).shared[1] then
        q.refuse(t, "cards_update", "", { job = tostring(job_rec.job_id or "") })
    end
end

-- Lua 5.1 has no bit operators.
local function has_flag(flags, flag)
    return math.floor((flags or 0) / flag) % 2 == 1
end

function M.with_flag(flags, flag)
    return has_flag(flags, flag) and flags or (flags or 0) + flag
end

-- `--gres-flags=enforce-binding` where slurmctld would book all cores near the card: it knows no
-- number of tasks for the node (seen live on 24.11 and 26.05).
function M.books_cores(job_desc)
    return has_flag(job_desc.bitflags, slurm.GRES_ENFORCE_BIND)
        and job_desc.num_tasks ~= 1 and not given(job_desc.ntasks_per_node, NO_VAL16)
end

return M
