-- SPDX-License-Identifier: Apache-2.0
--
-- Decides a submission: what it asks for, what Slurm gets instead, or the refusal. Pure functions
-- on strings, as docs/specs/request.md says. The order of the checks chooses the sentence for the
-- user, and is part of the behaviour. Runs in Lua 5.1 to 5.4; all numbers are doubles, below 2^53.
local here = debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "."
local text = dofile(here .. "/qgpu_text.lua")
local int, shown, split, bytes_of = text.int, text.shown, text.split, text.bytes_of

local M = {
    schema = 1,
    max_field_bytes = 1024, -- Slurm's own, in each text of a job that is read here
    looks_like_tag = text.looks_like_tag,
    strip_tags = text.strip_tags,
    tag_text = text.tag_text,
    parse_entry = text.parse_entry,
    parse_entries = text.parse_entries,
    bytes_of = bytes_of,
    split = split,
}

local MIB = 1048576.0
local CLASSES = { online = true, offline = true }
local SPELLINGS = {
    { "tres_per_job", "--gpus" },
    { "tres_per_task", "--tres-per-task" },
    { "tres_per_socket", "--gpus-per-socket" },
}
M.spellings = SPELLINGS
local OPTIONS = {
    { "cpus_per_tres", "--cpus-per-gpu", " --cpus-per-task=4" },
    { "mem_per_tres", "--mem-per-gpu", " --mem=16G" },
    { "tres_bind", "--gpu-bind", "" },
    { "tres_freq", "--gpu-freq", "" },
}

-- ---- refusals: error() with a table, caught by M.decide ----------------------------------------

-- A share that would work: the user's own of `token`, where it is one.
local function example_of(token, t)
    local entry = text.parse_entry(token)
    local ours = entry.name == "qgpu" or entry.parts[1] == "qgpu"
    for _, part in ipairs(ours and entry.parts or {}) do
        local share = part:find("^[0-9]+$") and #part <= 3 and tonumber(part)
        if share and share >= t.min_share and share <= t.max_share
            and M.default_mem(share, t.smallest) >= t.min_mem then
            return share
        end
    end
    return t.example
end

local function common_words(token, t)
    return {
        min = int(t.min_share),
        max = int(t.max_share),
        example = int(example_of(token, t)),
        low = int(t.min_mem),
        model = t.model_names[1],
        models = table.concat(t.model_names, ", "),
        qos = t.qos_names[1] or "none",
        qos_list = #t.qos_names > 0 and table.concat(t.qos_names, ", ") or "none",
        partition = t.partitions[1] or "none",
    }
end

function M.sentence(t, key, token, words)
    local all = common_words(token, t)
    all.token = shown(token)
    for name, word in pairs(words or {}) do
        all[name] = type(word) == "number" and int(word) or text.printable(word)
    end
    return (t.messages[key]:gsub("{([a-z_]+)}", function(name)
        return all[name] or error("qgpu: the sentence " .. key .. " needs the word " .. name)
    end))
end

local function refuse(t, key, token, words)
    error({ qgpu = true, key = key, text = M.sentence(t, key, token, words) }, 0)
end
M.refuse = refuse

-- ---- tags --------------------------------------------------------------------------------------

-- The field's new text: the tag, then the user's text without tags.
function M.tagged(tag, field, t)
    local head, rest = M.tag_text(tag), M.strip_tags(field or "")
    if rest == "" then
        return head
    end
    local room = M.max_field_bytes - #head - 2
    if #rest > room then
        refuse(t, "text_long", "", { field = t.tag_field, bytes = #rest, room = room })
    end
    return head .. "; " .. rest
end

local function typed(name, model, count)
    return name .. ":" .. (model and model .. ":" or "") .. int(count)
end

local function joined(own, rest)
    for _, entry in ipairs(rest) do
        own[#own + 1] = entry.text
    end
    return table.concat(own, ",")
end

-- ---- the qgpu entry ----------------------------------------------------------------------------

local function most_cards(t, model)
    local most = 0
    for name, card in pairs(t.models) do
        if (not model or model == name) and card.cards > most then
            most = card.cards
        end
    end
    return most
end

M.most_cards = most_cards

local function percent_of(entry, word, model, t)
    if word == "" or t.models[word] then
        refuse(t, "share_missing", entry.text)
    end
    if not word:find("^[0-9]+$") then
        refuse(t, "share_text", entry.text, { word = shown(word) })
    end
    local digits, cards = word:gsub("^0+", ""), most_cards(t, model)
    local most = t.whole_by_shard and 1 or cards
    if #digits > 6 then
        refuse(t, "cards_many", entry.text, { cards = cards, top = 100 * most })
    end
    local percent = tonumber(digits) or 0
    if percent < t.min_share then
        refuse(t, "share_low", entry.text)
    end
    if percent > 100 and percent % 100 ~= 0 then
        local up = 100 * math.min(math.floor(percent / 100) + 1, most)
        -- Where one card is all that can be had, both remedies were the same.
        refuse(t, up > t.max_share and "share_multiple" or "share_high", entry.text, { up = up })
    end
    if percent > 100 * cards then
        refuse(t, "cards_many", entry.text, { cards = cards, top = 100 * most })
    end
    return percent
end

local function share_of(entry, t)
    local parts = entry.parts
    if parts[1] and CLASSES[parts[1]] then
        refuse(t, "class_by_hand", entry.text)
    end
    if #parts < 2 then
        return { entry = entry, percent = percent_of(entry, parts[1] or "", nil, t) }
    end
    if #parts > 2 then
        refuse(t, "parts", entry.text)
    end
    if not t.models[parts[1]] then
        refuse(t, "model_unknown", entry.text, { word = shown(parts[1]) })
    end
    return { entry = entry, model = parts[1], percent = percent_of(entry, parts[2], parts[1], t) }
end

-- Accept only the one `shard:1` or `shard:MODEL:1` that our cli_filter adds for srun.
local function with_marker(share, shared, t)
    for _, entry in ipairs(shared) do
        local model = share.model
        if #entry.parts == 2 then
            model = entry.parts[1]
        end
        local fits = entry.name == "shard" and #shared == 1
            and entry.parts[#entry.parts] == "1" and #entry.parts < 3
        if not fits or (share.model and model ~= share.model) then
            refuse(t, "by_hand", entry.text)
        end
        if model and not t.models[model] then
            refuse(t, "model_unknown", entry.text, { word = shown(model) })
        end
        share.model = model
    end
end

-- ---- memory ------------------------------------------------------------------------------------

-- Models as {usable, name}, smallest first.
local function sizes_of(t)
    local sizes = {}
    for name, card in pairs(t.models) do
        sizes[#sizes + 1] = { card.usable, name }
    end
    table.sort(sizes, function(a, b)
        return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
    end)
    return sizes
end

-- Refuse memory above the card's; name a larger model that fits, or the largest one.
local function refuse_mem_high(entry, share, mem, t)
    local sizes = sizes_of(t)
    local model = share.model
    for _, size in ipairs(sizes) do
        if not model and size[1] >= mem then
            local words = { usable = sizes[1][1], model = size[2], share = share.percent }
            refuse(t, "mem_high_untyped", entry.text, words)
        end
    end
    if not model and sizes[#sizes][1] > sizes[1][1] then
        model = sizes[#sizes][2]
    end
    local usable = model and t.models[model].usable or sizes[1][1]
    refuse(t, "mem_high", entry.text, {
        usable = usable, ask = typed("qgpu", model, share.percent),
    })
end

-- MiB that a share must have: enough for a context.
local function least(model, t)
    return model and t.models[model].least or t.min_mem
end

local function mem_of(entry, share, t)
    local word = table.concat(entry.parts, ":")
    local size = bytes_of(word)
    if not size then
        local words = { word = shown(word), example = share.percent }
        refuse(t, "mem_text", entry.text, words)
    end
    local low = least(share.model, t)
    if size < low * MIB then
        refuse(t, "mem_low", entry.text, { share = share.percent, low = low })
    end
    local mem = math.ceil(size / MIB)
    if mem > (share.model and t.models[share.model].usable or t.smallest) then
        refuse_mem_high(entry, share, mem, t)
    end
    return mem
end

-- ---- class and reservation ---------------------------------------------------------------------

function M.job_class(qos, token, t)
    local found, count = nil, 0
    for _, name in ipairs(split((qos or ""), ",")) do
        if name ~= "" then
            count = count + 1
            -- Slurm ignores the case of QOS names
            local class = t.qos[name] or t.qos[name:lower()] or t.default_class
            if not class then
                refuse(t, "qos_unmapped", token, { word = shown(qos) })
            end
            found = (found == nil or found == class) and class or "mixed"
        end
    end
    if count == 0 then
        found = t.default_class
            or refuse(t, "qos_unmapped", token, { word = shown(qos ~= "" and qos or "(none)") })
    end
    if found == "mixed" then
        refuse(t, "qos_mixed", token, { word = shown(qos) })
    end
    return found
end

-- MiB of a share by default, and the shards that Slurm books. Rounding books more, never less.
-- Reclaimable memory books nothing, but a job without a shard would get no card.
function M.default_mem(share, usable)
    return math.floor(share * usable / 100)
end

function M.shards(share, mem, usable, compute, reclaimable)
    local by_mem = reclaimable and 1 or math.ceil(100 * mem / usable)
    return compute and math.max(share, by_mem) or by_mem
end

-- ---- the decision ------------------------------------------------------------------------------

function M.managed(partition, t)
    if #t.partitions == 0 then
        return true
    end
    for _, name in ipairs(split(partition or "", ",")) do
        for _, ours in ipairs(t.partitions) do
            if name == ours then
                return true
            end
        end
    end
    return false
end

local function check_options(job, token, t)
    for _, option in ipairs(OPTIONS) do
        if job[option[1]] and job[option[1]] ~= "" then
            refuse(t, "option", token, { option = option[2], instead = option[3] })
        end
    end
end

-- `--exclusive=user` and the like book what the job asks for, and keep the node from all others.
local function check_company(job, token, t)
    if job.only_for then
        refuse(t, "exclusive_for", token, { word = job.only_for })
    end
end

-- `--gres-flags=enforce-binding`, where it would book all cores near the card.
local function check_bound(job, token, t)
    if job.bound then
        refuse(t, "bound", token)
    end
end

local function decide_share(job, entries, share, t)
    local token = share.entry.text
    if share.percent > t.max_share then
        refuse(t, "share_high", token)
    end
    local mem = entries.mem[1] and mem_of(entries.mem[1], share, t)
    local class = M.job_class(job.qos, token, t)
    if job.exclusive then
        refuse(t, "exclusive", token)
    end
    check_bound(job, token, t)
    check_options(job, token, t)
    local usable = share.model and t.models[share.model].usable or t.smallest
    if not mem then
        mem = M.default_mem(share.percent, usable)
        local low = least(share.model, t)
        if mem < low then
            refuse(t, "mem_default_low", token, { mem = mem, low = low })
        end
    end
    local reclaimable = t.reclaimable and t.reclaimable[class]
    local shards = M.shards(share.percent, mem, usable, t.compute[class], reclaimable)
    local own = {
        "qgpu:" .. class .. ":" .. int(share.percent),
        typed("shard", share.model, shards),
        "vram:" .. int(mem) .. "M",
    }
    return {
        gres = joined(own, entries.rest),
        tag = { class = class, share = share.percent, mem = mem },
        model = share.model,
        shards = shards,
    }
end

-- A whole card, booked as all its shards.
local function decide_lone(job, entry, model, cards, rest, t)
    if cards ~= 1 then
        refuse(t, "whole_many", entry.text)
    end
    if model and not t.models[model] then
        refuse(t, "model_unknown", entry.text, { word = shown(model) })
    end
    check_options(job, entry.text, t)
    local gres = joined({ typed("shard", model, 100) }, rest)
    return { gres = gres, tag = {}, model = model, cards = 1 }
end

-- The entry, model and number of whole cards per node; 0 if it exceeds --gres=gpu:1.
local function lone(gpu, shared, entries)
    local entry, own = gpu[1], entries.gpu
    if not entry then
        entry, own = shared[1], entries.shared
    end
    local parts = entry.parts
    if #gpu + #shared ~= 1 or own[1] ~= entry or #parts > 2 then
        return entry, nil, 0
    end
    local last = parts[#parts] or ""
    local number = last:match("^0*(1)$") or last:match("^0*(100)$")
    if number then
        local fits = (number == "1") == (entry.name == "gpu")
        return entry, #parts == 2 and parts[1] or nil, fits and 1 or 0
    end
    local named = #parts == 1 and not parts[1]:find("^[0-9]+$")
    return entry, named and parts[1] or nil, (#parts == 0 or named) and 1 or 0
end

-- Whether this is what our cli_filter writes for a whole card, or what such a job was given.
function M.books_whole(shared, entries, t)
    local entry = shared[1]
    return t.whole_by_shard and #shared == 1 and entries.shared[1] == entry
        and entry.name == "shard" and entry.parts[#entry.parts] == "100" and #entry.parts < 3
end

local function decide_qgpu(job, entries, shared, gpu, t)
    local entry = entries.qgpu[1]
    if not M.managed(job.partition, t) then
        local named = (job.partition or "") ~= "" and job.partition or "(default)"
        refuse(t, "partition", entry.text, { word = shown(named) })
    end
    check_company(job, entry.text, t)
    local share = share_of(entry, t)
    with_marker(share, shared, t)
    if gpu[1] then
        refuse(t, "gpu_and_qgpu", entry.text, { other = shown(gpu[1].text) })
    end
    if share.percent < 100 or (share.percent == 100 and entries.mem[1]) then
        return decide_share(job, entries, share, t)
    end
    local lone_card = t.whole_by_shard and not job.exclusive
    if entries.mem[1] and not (lone_card and share.percent > 100) then
        refuse(t, "mem_whole", entries.mem[1].text, { other = shown(entry.text) })
    end
    if lone_card then
        return decide_lone(job, entry, share.model, share.percent / 100, entries.rest, t)
    end
    local count = share.percent / 100
    local gres = joined({ typed("gpu", share.model, count) }, entries.rest)
    return { gres = gres, tag = {}, model = share.model, cards = count }
end

local function append(list, more)
    for _, item in ipairs(more) do
        list[#list + 1] = item
    end
end

-- `qgpu_mem`, as vram was called: nobody's job may run without the memory that it asks for.
local function check_word(entries, own, t)
    for _, entry in ipairs(entries.rest) do
        if entry.name == "qgpu_mem" then
            local word = table.concat(entry.parts, ":")
            local size = bytes_of(word) or 0
            local fits = size >= t.min_mem * MIB and size <= t.smallest * MIB
            refuse(t, "old_word", entry.text, {
                size = fits and word or int(t.min_mem) .. "M",
                example = own and example_of(own.text, t) or nil,
            })
        end
    end
end

-- `--gpus=qgpu:30` arrives as gpu:qgpu:30: for Slurm a card model, which no node has.
local function check_model(gpu, option, t)
    for _, entry in ipairs(gpu) do
        if entry.parts[1] == "qgpu" then
            refuse(t, "spelling", entry.text, { option = option })
        end
    end
end

local function decide_gres(job, t)
    local shared, gpu = {}, {}
    local entries = M.parse_entries(job.gres)
    check_word(entries, entries.qgpu[1], t)
    check_model(entries.gpu, "--gpus-per-node", t)
    append(shared, entries.shared)
    append(gpu, entries.gpu)
    for _, spelling in ipairs(SPELLINGS) do
        local found = M.parse_entries(job[spelling[1]])
        check_word(found, found.qgpu[1], t)
        local ours = found.qgpu[1] or found.mem[1]
        if ours then
            refuse(t, "spelling", ours.text, { option = spelling[2] })
        end
        check_model(found.gpu, spelling[2], t)
        append(shared, found.shared)
        append(gpu, found.gpu)
    end
    if entries.qgpu[2] then
        refuse(t, "doubled", entries.qgpu[2].text)
    end
    if entries.mem[2] then
        local own = entries.qgpu[1]
        local words = { example = own and example_of(own.text, t) or nil }
        refuse(t, "doubled_mem", entries.mem[2].text, words)
    end
    if entries.qgpu[1] then
        return decide_qgpu(job, entries, shared, gpu, t)
    end
    if entries.mem[1] then
        refuse(t, "mem_alone", entries.mem[1].text)
    end
    if not M.managed(job.partition, t) then
        return {}
    end
    if not (shared[1] or gpu[1]) then
        -- Where all partitions are managed some may have no cards: such jobs are not our concern.
        if job.only_for and #t.partitions > 0 then
            refuse(t, "exclusive_bare", "", { word = job.only_for, where = shown(job.partition) })
        end
        -- Slurm gives such a job all cards of its nodes
        return { tag = job.exclusive and { node = true } or nil }
    end
    if shared[1] and (gpu[1] or not M.books_whole(shared, entries, t)) then
        refuse(t, "by_hand", shared[1].text)
    end
    check_company(job, (gpu[1] or shared[1]).text, t)
    if gpu[1] and (job.exclusive or not t.whole_by_shard) then
        return { tag = {} }
    end
    local entry, model, cards = lone(gpu, shared, entries)
    return decide_lone(job, entry, model, cards, entries.rest, t)
end

local function clean(field)
    return field and M.looks_like_tag(field) and M.strip_tags(field) or nil
end

-- fn(...), or nil and the refusal {key, text}; other errors go to the caller.
function M.guarded(fn, ...)
    local ok, result, more = pcall(fn, ...)
    if ok then
        return result, more
    end
    if type(result) == "table" and result.qgpu then
        return nil, result
    end
    error(result, 0)
end

local function decide(job, t)
    local decision = decide_gres(job, t)
    decision.comment, decision.extra = clean(job.comment), clean(job.extra)
    if decision.tag then
        decision[t.tag_field] = M.tagged(decision.tag, job[t.tag_field], t)
    end
    return decision
end

-- Decide a submission: a table of strings under Slurm's names, `exclusive` a boolean, `only_for`
-- the word of `--exclusive=user` and the like, `bound` whether gres binding would book all cores
-- near the card. Returns the fields to write {gres, comment, extra},
-- nil if unchanged, and their meaning: `tag`, `model`, the `shards` booked on a card, the number of
-- whole `cards` per node. Or nil and the refusal {key, text}.
function M.decide(job, t)
    return M.guarded(decide, job, t)
end

-- ---- reading back what was written -------------------------------------------------------------

-- From a job's rewritten gres string: the request as the user could write it, and the tag; nil
-- without a share. slurm_job_modify needs it where Slurm shows Lua neither tag nor request.
function M.read_back(gres)
    local entries = M.parse_entries(gres)
    local own, mem = entries.qgpu[1], entries.mem[1]
    if not own or not mem or not CLASSES[own.parts[1] or ""] then
        return nil
    end
    local share, size = tonumber(own.parts[2]), bytes_of(mem.parts[1] or "")
    if not share or not size then
        return nil
    end
    local model
    for _, entry in ipairs(entries.shared) do
        model = #entry.parts == 2 and entry.parts[1] or nil
    end
    local request = { typed("qgpu", model, share), mem.text }
    local tag = { class = own.parts[1], share = share, mem = math.ceil(size / MIB) }
    return joined(request, entries.rest), tag
end

function M.has_gpu(job, t)
    local entries = M.parse_entries(job.gres)
    if entries.gpu[1] or (not entries.qgpu[1] and M.books_whole(entries.shared, entries, t)) then
        return true
    end
    for _, spelling in ipairs(SPELLINGS) do
        if M.parse_entries(job[spelling[1]]).gpu[1] then
            return true
        end
    end
    return false
end

return M
