-- SPDX-License-Identifier: Apache-2.0
--
-- The options of qgpu's SPANK plugin, --vram and --qgpu-cards, as slurmctld gets them: lines of
-- the job's SPANK environment. They mean the same as --gres and become part of it, so they need no
-- trust.
local M = {}

local NAMES = { QGPU_VRAM = "mem", QGPU_CARDS = "cards", QGPU_PLAN = "plan" }

-- { mem = "12G", cards = "2", plan = "1" } of the list of NAME=VALUE (with Slurm's SPANK_ in front,
-- or without); at most 32 bytes.
function M.read(environment)
    local found = {}
    for _, line in pairs(environment or {}) do
        local name, value = tostring(line):match("^([A-Z_]+)=(.*)$")
        local key = name and NAMES[name:gsub("^SPANK_", "")]
        if key and #value <= 32 then
            found[key] = value
        end
    end
    return found
end

-- The gres string with the same meaning.
function M.with_mem(gres, options)
    if not options.mem then
        return gres
    end
    local mem = "vram:" .. options.mem
    return gres and gres ~= "" and gres .. "," .. mem or mem
end

return M
