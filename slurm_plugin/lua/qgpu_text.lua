-- SPDX-License-Identifier: Apache-2.0
--
-- Parses texts of a submission: numbers, sizes, tags, entries of a TRES string. Decides nothing;
-- qgpu.lua does. Runs in Lua 5.1 to 5.4; all numbers are doubles, below 2^53.
local M = {}

local HUGE = 2 ^ 53

-- A whole number as text; %d differs between Lua versions above 2^31.
function M.int(number)
    return string.format("%.0f", number)
end

-- User text fit to print: bytes that are not printable ASCII become '?'.
function M.printable(text)
    return (text:gsub("[^\032-\126]", "?"))
end

-- The same, and long text is cut.
function M.shown(text)
    local safe = M.printable(text)
    if #safe > 60 then
        safe = safe:sub(1, 57) .. "..."
    end
    return safe
end

function M.split(text, separator)
    local parts, start = {}, 1
    while true do
        local at = text:find(separator, start)
        if not at then
            parts[#parts + 1] = text:sub(start)
            return parts
        end
        parts[#parts + 1] = text:sub(start, at - 1)
        start = at + 1
    end
end

-- ---- tags --------------------------------------------------------------------------------------

-- slurmctld holds its locks here, and users choose the text's length: one pass, no backtracking
-- patterns, no copies in loops.
local NOT_BLANK = "[^ \t\r\n\v\f]"

local function tag_at(text, start)
    local at = text:find(NOT_BLANK, start)
    return at, at ~= nil and text:sub(at, at + 4) == "qgpu/"
end

function M.looks_like_tag(text)
    local _, is_tag = tag_at(text, 1)
    return is_tag
end

-- A user's text without anything that begins like a tag, and without outer blanks.
function M.strip_tags(text)
    local at, is_tag = tag_at(text, 1)
    while is_tag do
        local stop = text:find(";", at, true)
        if not stop then
            return ""
        end
        at, is_tag = tag_at(text, stop + 1)
    end
    if not at then
        return ""
    end
    local last = #text
    while not text:sub(last, last):find(NOT_BLANK) do
        last = last - 1
    end
    return text:sub(at, last)
end

function M.tag_text(tag)
    if not tag.class then
        return tag.node and "qgpu/1 node" or "qgpu/1 whole"
    end
    return "qgpu/1 class=" .. tag.class .. " share=" .. M.int(tag.share)
        .. " mem=" .. M.int(tag.mem)
        .. (tag.cards and " cards=" .. M.int(tag.cards) or "")
        .. (tag.host and " host=" .. M.int(tag.host) or "")
        .. (tag.host_cpus and "/" .. M.int(tag.host_cpus) or "")
end

-- ---- entries of a TRES string ------------------------------------------------------------------

function M.parse_entry(text)
    local start = 1
    while text:find("^gres[:/]", start) do
        start = start + 5
    end
    text = text:sub(start)
    local parts = M.split(text, "[:=]")
    return { text = text, name = table.remove(parts, 1), parts = parts }
end

local GROUP = { qgpu = "qgpu", vram = "mem", gpu = "gpu", shard = "shared", mps = "shared" }

-- `gpu:0` asks for nothing, and must not be promised a card.
local function no_card(entry)
    return entry.name == "gpu" and M.bytes_of(entry.parts[#entry.parts] or "") == 0
end

function M.parse_entries(text)
    local entries = { qgpu = {}, mem = {}, shared = {}, gpu = {}, rest = {} }
    for _, part in ipairs(M.split(text or "", ",")) do
        local entry = M.parse_entry(part)
        if entry.text ~= "" and not no_card(entry) then
            local group = entries[GROUP[entry.name] or "rest"]
            group[#group + 1] = entry
        end
    end
    return entries
end

-- ---- sizes -------------------------------------------------------------------------------------

-- Bytes per unit of a Slurm suffix: G and GiB count 1024^3, GB counts 1000^3.
local function suffix_factor(suffix)
    local low = suffix:lower()
    if low == "" then
        return 1.0
    end
    local power = ("kmgtp"):find(low:sub(1, 1), 1, true)
    local base = ({ [""] = 1024.0, ib = 1024.0, b = 1000.0 })[low:sub(2)]
    return power and base and base ^ power
end

-- Bytes of a Slurm count, at most 2^53; nil if it is none.
function M.bytes_of(word)
    local digits, suffix = word:match("^([0-9]+)([A-Za-z]*)$")
    local factor = digits and suffix_factor(suffix)
    if not factor then
        return nil
    end
    digits = digits:gsub("^0+", "")
    if #digits > 15 then
        return HUGE
    end
    return math.min(((tonumber(digits) or 0) + 0.0) * factor, HUGE)
end

return M
