-- SPDX-License-Identifier: Apache-2.0
--
-- The hooks of job_submit.lua. A site's script calls them in one line each:
--
--     local load = dofile("/usr/share/qgpu/lua/qgpu_job_submit.lua")
--     local qgpu = load("/etc/slurm/qgpu/qgpu_tables.lua")
--     function slurm_job_submit(...) return qgpu.submit(...) end
--     function slurm_job_modify(...) return qgpu.modify(...) end
--
-- Only changed fields are written. What we wrote is read back from the job's rewritten gres, since
-- some versions of Slurm do not show Lua each tag field.
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
local q = dofile(here .. "/qgpu.lua")
local options = dofile(here .. "/qgpu_options.lua")
local cards = dofile(here .. "/qgpu_cards.lua")
local host = dofile(here .. "/qgpu_host.lua")
local whole = dofile(here .. "/qgpu_whole.lua")
local bounds = dofile(here .. "/qgpu_bounds.lua")
local plan = dofile(here .. "/qgpu_plan.lua")

local FIELDS = { "tres_per_job", "tres_per_task", "tres_per_socket", "cpus_per_tres",
    "mem_per_tres", "tres_bind", "tres_freq" }
local STATE_MODULUS = 256 -- Slurm's JOB_STATE_BASE (0xff) plus one: higher bits are flags
local JOB_SHARED_NONE = 0 -- --exclusive
local JOB_SHARED_OK = 1
-- --exclusive=WORD of a submission (seen on 22.05, 24.11 and 26.05)
local EXCLUSIVE_FOR = { [2] = "user", [3] = "mcs", [4] = "topo" }
local NO_VAL16 = 65534
local PENDING = 0
local ESLURM_INVALID_GRES = 2072 -- the same in all versions; few define it for Lua

-- tables: the path of qgpu_tables.lua, or what it returns.
local function load_tables(tables)
    local found, name = tables, "qgpu_tables.lua"
    if type(tables) ~= "table" then
        found, name = dofile(tables), tables
    end
    if type(found) ~= "table" or found.schema ~= q.schema then
        error("qgpu: " .. name .. " is of another version than qgpu.lua; run `qgpu setup"
            .. " --role controller` again", 0)
    end
    return found
end

local function given(value)
    return value ~= nil and value ~= ""
end

-- Whether a job may hold cards, as far as its words say.
local function about_cards(job_desc)
    local asks = job_desc.shared == JOB_SHARED_NONE or given(job_desc.gres)
        or whole.per_card(job_desc) -- --ntasks-per-gpu
    for _, name in ipairs(FIELDS) do
        asks = asks or given(job_desc[name])
    end
    return asks
end

local function default_partition(part_list)
    for name, part in pairs(part_list or {}) do
        if part.flag_default == 1 then
            return part.name or name
        end
    end
    return nil
end

-- A job has `extra` since 23.02; reading it in an older Slurm fills slurmctld's log with errors.
local function extra_of(record, t)
    return t.has_extra and record.extra or nil
end

-- The QOS of a job without --qos, by Slurm's rules, of which Lua sees only the first: the
-- association's default, its only QOS, `normal`. An association may belong to the default
-- partition, so the question must name that.
local function default_qos(job_desc, part_list, t)
    local partition = not given(job_desc.partition) and default_partition(part_list)
    if partition then
        job_desc.partition = partition
    end
    local found = job_desc.default_qos
    local only = not given(found) and t.assoc_qos and job_desc.assoc_qos
    if partition then
        job_desc.partition = ""
    end
    if only and given(only) and not only:find(",") then
        found = only
    end
    return given(found) and found or t.qos.normal and "normal" or nil
end

-- The word of a submission's --exclusive=WORD, nil without one; the number of an unknown one.
local function only_for(job_desc)
    local shared = job_desc.shared
    if type(shared) ~= "number" or shared <= JOB_SHARED_OK or shared >= NO_VAL16 then
        return nil
    end
    return EXCLUSIVE_FOR[shared] or tostring(shared)
end

local function read_submission(job_desc, part_list, t)
    bounds.check_texts(job_desc, q, t)
    local said = options.read(bounds.spank(job_desc, q, t))
    local gres = options.with_mem(job_desc.gres, said)
    local job = {
        gres = gres,
        qos = given(job_desc.qos) and job_desc.qos
            or (given(gres) or about_cards(job_desc)) and default_qos(job_desc, part_list, t)
            or nil,
        comment = job_desc.comment,
        extra = extra_of(job_desc, t),
        partition = job_desc.partition,
        exclusive = job_desc.shared == JOB_SHARED_NONE,
        only_for = only_for(job_desc),
        bound = t.books_cores and cards.books_cores(job_desc),
    }
    if not given(job.partition) and #t.partitions > 0 then
        job.partition = default_partition(part_list)
    end
    for _, name in ipairs(FIELDS) do
        job[name] = job_desc[name]
    end
    whole.of_tasks(job_desc, job, q)
    return job, said
end

-- The message is an argument: log_user formats its first one, and a user's text may hold a '%'.
local function tell(text)
    slurm.log_user("%s", "qgpu: " .. text)
end

local function write(job_desc, decision, t)
    for _, name in ipairs({ "gres", "comment", "extra", "qos" }) do
        if decision[name] ~= nil then
            job_desc[name] = decision[name]
        end
    end
    local text = host.write(job_desc, decision, q, t)
    if text then
        tell(text)
    end
end

-- A step asks for what its job asks for. A batch job that is alone on its node and names no card
-- has its cards named by us, and its steps would have to take turns on them: cli_filter.lua reads
-- this and asks for none. Emptied for a job that was submitted within such a job.
local function mark_steps(job_desc, decision)
    if job_desc.script == nil then
        return -- the environment of srun and salloc is not slurmctld's
    end
    local environment = job_desc.environment
    if decision.unnamed then
        environment.QGPU_STEP_GRES = "none"
    elseif environment and environment.QGPU_STEP_GRES then
        environment.QGPU_STEP_GRES = ""
    end
end

local function refused(refusal)
    tell(refusal.text)
    return slurm.ESLURM_INVALID_GRES or ESLURM_INVALID_GRES
end

-- Decide a submission: q.decide's answer, with `per_task` if cards.spread set the job's shape in
-- job_desc, the QOS to write, and `planned` if `qgpu plan` asks. Or nil and the refusal. Writes no
-- text field; `qgpu plan` without a slurmctld calls this too.
local function judge(t, job_desc, part_list)
    local job, said, refusal, found, decision
    job, said = q.guarded(read_submission, job_desc, part_list, t)
    if not job then
        return nil, said
    end
    found, refusal = q.guarded(cards.native, job_desc, job, said.cards or false, q, t)
    if refusal then
        return nil, refusal
    end
    decision, refusal = q.decide(job, t)
    if not decision then
        return nil, refusal
    end
    decision.per_task, refusal = q.guarded(cards.spread, job_desc, decision, found or nil, q, t)
    if refusal then
        return nil, refusal
    end
    found, refusal = q.guarded(whole.book, job_desc, job, decision, part_list, q, t)
    if refusal then
        return nil, refusal
    end
    found, refusal = q.guarded(host.add, job_desc, part_list, decision, q, t)
    if refusal then
        return nil, refusal
    end
    -- The class came from this QOS: so the job has it, or Slurm refuses it to this user.
    if decision.tag and decision.tag.class and job_desc.qos == nil then
        decision.qos = job.qos
    end
    decision.planned = said.plan == "1"
    return decision
end

local function submit(t, job_desc, part_list)
    bounds.drop_extra(job_desc, t)
    local decision, refusal = judge(t, job_desc, part_list)
    if not decision then
        return refused(refusal)
    end
    if decision.planned then
        local tag = decision.tag and q.tagged(decision.tag, nil, t)
        for _, line in ipairs(plan.lines(job_desc, decision, tag)) do
            tell(line)
        end
    end
    write(job_desc, decision, t)
    mark_steps(job_desc, decision)
    return slurm.SUCCESS
end

-- ---- modify ------------------------------------------------------------------------------------

local function pending(job_rec)
    local state = job_rec.job_state
    return state == nil or state % STATE_MODULUS == PENDING
end

local function first_given(a, b)
    if a ~= nil then
        return a
    end
    return b
end

-- The job's present fields, as strings.
local function current(job_rec, t)
    local job = {
        id = job_rec.job_id,
        gres = first_given(job_rec.tres_per_node, job_rec.gres),
        tres_per_job = job_rec.tres_per_job,
        tres_per_task = job_rec.tres_per_task,
        tres_per_socket = job_rec.tres_per_socket,
        qos = job_rec.qos,
        partition = job_rec.partition,
        comment = job_rec.comment,
        extra = extra_of(job_rec, t),
    }
    job.request, job.tag = q.read_back(job.gres)
    if job.tag then
        job.tag = cards.of_each(job.tag, job[t.tag_field])
        job.tag.host, job.tag.host_cpus = host.of_tag(job[t.tag_field])
        return job
    end
    if not q.managed(job.partition, t) then
        return job
    end
    local gres, class, more = whole.without(job.gres, q)
    local left = {}
    for name, value in pairs(job) do
        left[name] = value
    end
    left.gres, left.counted = gres, gres ~= job.gres
    if q.has_gpu(left, t) then
        left.tag = { booked = class }
        -- Only a job with --exclusive is counted with more cards than it asks for, or has whole
        -- cards as such where others have shard:100.
        local entries = q.parse_entries(gres)
        left.alone = more or (t.whole_by_shard and not q.books_whole(entries.shared, entries, t))
    elseif given(job[t.tag_field]) and q.looks_like_tag(job[t.tag_field]) then
        -- --exclusive without gres: Slurm shows Lua only our tag, which users cannot write.
        left.tag, left.alone, left.uncounted = { node = true }, true, not left.counted
    else
        return job
    end
    return left
end

local function asks_gres(job_desc)
    return job_desc.gres ~= nil or job_desc.tres_per_job ~= nil or job_desc.tres_per_task ~= nil
        or job_desc.tres_per_socket ~= nil
end

-- `scontrol update OverSubscribe=yes`: a job with --exclusive may share its nodes then.
local function shares_node(job_desc)
    local shared = job_desc.shared
    return type(shared) == "number" and shared > JOB_SHARED_NONE and shared < NO_VAL16
end

-- The new submission that a change of gres, QOS or partition of a waiting job equals.
local function resubmission(job_desc, now, t)
    local job = {
        id = now.id,
        gres = first_given(job_desc.gres, now.request or now.gres),
        qos = given(job_desc.qos) and job_desc.qos or now.qos,
        partition = given(job_desc.partition) and job_desc.partition or now.partition,
        comment = first_given(job_desc.comment, now.comment),
        extra = first_given(extra_of(job_desc, t), now.extra),
        exclusive = job_desc.shared == JOB_SHARED_NONE or (now.alone and not shares_node(job_desc)),
    }
    for _, name in ipairs(FIELDS) do
        job[name] = first_given(job_desc[name], now[name])
    end
    return job
end

-- Text fields alone: our tag stays in front, and a user's tag is removed.
local function retag(job_desc, tag, t)
    local fields = { comment = job_desc.comment, extra = extra_of(job_desc, t) }
    for name, text in pairs(fields) do
        if tag and name == t.tag_field then
            job_desc[name] = q.tagged(tag, text, t)
        elseif q.looks_like_tag(text) then
            job_desc[name] = q.strip_tags(text)
        end
    end
    return true
end

local function refuse_started(job_desc, job_rec, now, t)
    local what
    if asks_gres(job_desc) then
        what = "the gres"
    elseif now.tag and now.tag.class and given(job_desc.qos)
        and q.job_class(job_desc.qos, now.request, t) ~= now.tag.class then
        what = "the class (QOS)"
    end
    if what then
        q.refuse(t, "started", "", { job = tostring(job_rec.job_id or ""), what = what })
    end
end

-- The word for the cards of a job in Slurm's accounting.
local function kind(tag)
    if not tag or tag.class then
        return tag and tag.class or "no cards"
    end
    return "whole cards" .. (tag.booked and " (" .. tag.booked .. ")" or "")
end

-- Slurm 22.05 keeps the count of a TRES that leaves a waiting job, and books it beside the new one.
-- (Seen live: an offline job moved to an online QOS had both counts in AllocTRES.) Limits and
-- reports would be wrong.
local function refuse_other_kind(job_rec, now, tag, t)
    if now.tag and not now.uncounted and not t.has_extra and kind(now.tag) ~= kind(tag) then
        local words = {
            job = tostring(job_rec.job_id or ""), word = kind(now.tag), what = kind(tag),
        }
        q.refuse(t, "kind", "", words)
    end
end

-- Another memory, or number of CPUs, of a waiting share that stays as it is.
local function resize(job_desc, job_rec, part_list, now, t)
    if not now.tag.host then
        return -- it was submitted before its memory could be taken back
    end
    local decision = { tag = now.tag, comment = job_desc.comment, extra = extra_of(job_desc, t) }
    decision[t.tag_field] = first_given(decision[t.tag_field], now[t.tag_field])
    host.change(job_desc, job_rec, part_list, now.tag, decision, q, t)
    write(job_desc, decision, t)
end

local function modified(job_desc, job_rec, part_list, t)
    bounds.check_texts(job_desc, q, t)
    local now = current(job_rec, t)
    if not pending(job_rec) then
        if now.tag then
            refuse_started(job_desc, job_rec, now, t)
        end
        return retag(job_desc, now.tag, t)
    end
    if now.tag and now.tag.class and job_desc.qos == "" then
        -- Slurm's default, which Lua cannot see
        q.refuse(t, "qos_none", "", { job = tostring(job_rec.job_id or "") })
    end
    local moved = now.tag and (given(job_desc.qos) or given(job_desc.partition))
        or now.alone and shares_node(job_desc)
        or job_desc.shared == JOB_SHARED_NONE
    local job = resubmission(job_desc, now, t)
    whole.check_update(job_desc, job, now, asks_gres(job_desc), q, t)
    if not asks_gres(job_desc) and not moved then
        if host.concerns(job_desc, now.tag) then
            resize(job_desc, job_rec, part_list, now, t)
        end
        return retag(job_desc, now.tag, t)
    end
    cards.check_update(job_rec, q, t)
    local decision, refusal = q.decide(job, t)
    if not decision then
        error({ qgpu = true, key = refusal.key, text = refusal.text }, 0)
    end
    -- The job's shape stays as it is: a request whose nodes would have to be fixed is refused.
    whole.book(nil, job, decision, part_list, q, t)
    if now.counted and not decision.tag and decision.gres == nil then
        decision.gres = job.gres or "" -- without our count
    end
    refuse_other_kind(job_rec, now, decision.tag, t)
    if now.tag and not decision.tag and decision[t.tag_field] == nil then
        decision[t.tag_field] = "" -- the job has no cards any more, so no tag
    end
    host.change(job_desc, job_rec, part_list, now.tag, decision, q, t)
    write(job_desc, decision, t)
    return true
end

local function modify(t, job_desc, job_rec, part_list)
    local done, refusal = q.guarded(modified, job_desc, job_rec, part_list, t)
    if not done then
        return refused(refusal)
    end
    return slurm.SUCCESS
end

-- ---- faults of our own -------------------------------------------------------------------------

-- Whether a submission concerns what we decide.
local function ours(job_desc)
    return about_cards(job_desc) or only_for(job_desc)
end

-- Whether an update concerns what we decide, or a text that may carry our tag.
local function about_tags(job_desc, t)
    return ours(job_desc) or shares_node(job_desc) or asks_gres(job_desc)
        or job_desc.qos ~= nil
        or job_desc.partition ~= nil or job_desc.comment ~= nil or extra_of(job_desc, t) ~= nil
end

-- fn(t, job_desc, ...). slurmctld accepts a job unchanged if its script fails: a job about cards is
-- refused instead.
local function closed(matters, fn, t, job_desc, ...)
    local done, code = pcall(fn, t, job_desc, ...)
    if done then
        return code
    end
    slurm.log_error("%s", "qgpu: job_submit.lua failed: " .. tostring(code))
    if not matters(job_desc, t) then
        return slurm.SUCCESS
    end
    return refused({
        text = "this cannot be judged, by a fault that is not yours; tell your administrators"
            .. " to read slurmctld's log.",
    })
end

local function hooks_of(path)
    local t = load_tables(path)
    return {
        judge = function(job_desc, part_list)
            return judge(t, job_desc, part_list)
        end,
        submit = function(job_desc, part_list, _)
            return closed(ours, submit, t, job_desc, part_list)
        end,
        modify = function(job_desc, job_rec, part_list, _)
            return closed(about_tags, modify, t, job_desc, job_rec, part_list)
        end,
    }
end

-- ---- new tables --------------------------------------------------------------------------------

local function text_of(path)
    local file = io.open(path, "rb")
    local text = file and file:read("*a")
    if file then
        file:close()
    end
    return text
end

-- slurmctld reads its script again only when that file changes, which may be the site's. So each
-- call checks whether the tables changed (7 KB, some microseconds), and then all modules are read
-- anew: an upgrade changes the tables' first line. Unreadable tables leave the old ones in force.
local function reloading(path)
    local text, hooks = text_of(path), hooks_of(path)
    local function fresh()
        local now = text_of(path)
        if now == text then
            return hooks
        end
        text = now
        local done, found = pcall(function()
            return dofile(here .. "/qgpu_job_submit.lua")(path, true)
        end)
        if done then
            hooks = found
        else
            slurm.log_error("%s", "qgpu: the tables before stay in force: " .. tostring(found))
        end
        return hooks
    end
    return {
        submit = function(...)
            return fresh().submit(...)
        end,
        modify = function(...)
            return fresh().modify(...)
        end,
    }
end

-- tables: the path of qgpu_tables.lua, or its table. once: without checks for new tables; then
-- there is also `judge`, which decides a submission and writes no text field.
return function(tables, once)
    return (once and hooks_of or reloading)(tables or (here .. "/qgpu_tables.lua"))
end
