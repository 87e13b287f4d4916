-- Who has a key: the map of /processors, which is asked for each second, and Kafka's murmur2 of the key.
-- A wrong guess costs a hop: the instance that is asked then asks the right one.
local balancer, bit, json = require("ngx.balancer"), require("bit"), require("cjson.safe")
local band, bxor, rshift, tobit = bit.band, bit.bxor, bit.rshift, bit.tobit
local M, SEED = 0x5bd1e995, 0x9747b28c
local known = {map = {}, instances = {}}
local turn = 0
local owners = {}

local function times(a)  -- a * M modulo 2^32
    return tobit(band(a, 0xffff) * M + rshift(a, 16) * M % 0x10000 * 0x10000)
end

function owners.murmur2(key)
    local length = #key
    local h = bxor(SEED, length)
    for at = 1, length - 3, 4 do
        local a, b, c, d = key:byte(at, at + 3)
        local k = times(tobit(a + b * 0x100 + c * 0x10000 + d * 0x1000000))
        h = bxor(times(h), times(bxor(k, rshift(k, 24))))
    end
    local rest = length % 4
    if rest > 0 then
        local a, b, c = key:byte(length - rest + 1, length)
        h = times(bxor(h, a + (b or 0) * 0x100 + (c or 0) * 0x10000))
    end
    h = times(bxor(h, rshift(h, 13)))
    return band(bxor(h, rshift(h, 15)), 0x7fffffff)
end

-- The key's text in Kafka, of a request's path; nil where the path names none.
function owners.key(path)
    local key = path:match("^/stores/[^/]+/keys/([^?]*)")
    if not key then return nil end
    key = key:gsub("/history$", ""):gsub("/reports$", "")
    local parts = {}
    for part in (key .. "/"):gmatch("([^/]*)/") do
        parts[#parts + 1] = ngx.unescape_uri((part:gsub("+", "%%2B")))
    end
    if #parts == 1 then return parts[1] end
    for i, part in ipairs(parts) do
        parts[i] = part:gsub("[^%w_.~-]", function(c) return ("%%%02X"):format(c:byte()) end)
    end
    return table.concat(parts, "/")
end

local function ask(address)
    local socket = ngx.socket.tcp()
    socket:settimeout(1000)
    local host, port = address:match("^(.*):(%d+)$")
    if not socket:connect(host, tonumber(port)) then return nil end
    socket:send("GET /processors HTTP/1.0\r\nHost: " .. address .. "\r\n\r\n")
    local answer = socket:receive("*a")
    socket:close()
    local body = answer and answer:match("\r\n\r\n(.*)$")
    local found = body and json.decode(body)
    return found and found.map and found or nil
end

function owners.follow(addresses)
    local function look(stopping)
        if stopping then return end
        for i = 1, #addresses do
            local found = ask(addresses[(turn + i) % #addresses + 1])
            if found then
                known = found
                break
            end
        end
        turn = turn + 1
        ngx.timer.at(1, look)
    end
    ngx.timer.at(0, look)
end

function owners.balance()
    local tried, first = ngx.ctx.tried or 0, 0
    ngx.ctx.tried = tried + 1
    local key, able = owners.key(ngx.var.request_uri), {}
    if key and known.shards and known.shards > 0 then
        able = known.map[owners.murmur2(key) % known.shards + 1] or {}
    end
    if #able == 0 then
        for _, instance in ipairs(known.instances) do
            if instance.up then able[#able + 1] = instance.address end
        end
        if tried == 0 then
            turn = turn + 1
            ngx.ctx.first = turn
        end
        first = ngx.ctx.first or 0
    end
    if #able == 0 then return ngx.exit(502) end
    if tried == 0 and #able > 1 then balancer.set_more_tries(#able - 1) end
    local host, port = able[(first + tried) % #able + 1]:match("^https?://(.*):(%d+)$")
    assert(balancer.set_current_peer(host, tonumber(port)))
end

return owners
