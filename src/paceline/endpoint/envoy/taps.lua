-- Hands a copy of each answer to the controller once it has ended, and of a failed one its status at
-- once. Every chunk goes on to the client as soon as this has looked at it, and nothing waits for the
-- controller: what is not sent to it within a second, or beyond the bounds of its cluster, is lost.
local CONSENT = { @CONSENT@ } -- apps whose token ids may be kept
local SHARE = @SHARE@ -- of their requests that are asked for token ids
local SESSION = "@SESSION@"
local REQUEST_BYTES = 262144 -- of a request; a longer one is not handed over
local COUNT_BYTES = 65536 -- of an answer's end, where its counts are
local TOKEN_BYTES = 1048576 -- of an answer with token ids

local function now(handle)
  return handle:timestampString(EnvoyTimestampResolution.MICROSECOND)
end

-- Return at most the last `most` bytes of a body, how many there were, and when the first came.
local function read(handle, most)
  local parts, from, kept, size, first = {}, 1, 0, 0, ""
  for chunk in handle:bodyChunks() do
    local bytes = chunk:length()
    if bytes > 0 then
      if size == 0 then first = now(handle) end
      parts[#parts + 1] = chunk:getBytes(0, bytes)
      size, kept = size + bytes, kept + bytes
      while kept - #parts[from] >= most do
        kept = kept - #parts[from]
        parts[from] = false
        from = from + 1
      end
    end
  end
  return string.sub(table.concat(parts, "", from), -most), size, first
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local path = headers:get(":path")
  if headers:get(":method") ~= "POST"
    or (path ~= "/v1/chat/completions" and path ~= "/v1/completions") then
    return
  end
  local app = headers:get("x-paceline-app") or ""
  local size = tonumber(headers:get("content-length")) or REQUEST_BYTES + 1
  local tapped = handle:streamInfo():dynamicMetadata()
  tapped:set("paceline", "start", now(handle))
  tapped:set("paceline", "app", app)
  tapped:set("paceline", "region", headers:get("x-paceline-region") or "")
  tapped:set("paceline", "session", headers:get(SESSION) or "")
  tapped:set("paceline", "id", headers:get("x-request-id") or "")
  tapped:set("paceline", "tokens", "no")
  tapped:set("paceline", "request", "")
  if size > REQUEST_BYTES then return end
  local body = handle:body()
  if body == nil then return end
  local text = body:getBytes(0, body:length())
  tapped = handle:streamInfo():dynamicMetadata() -- handles end where a script has waited
  tapped:set("paceline", "request", text)
  if CONSENT[app] and math.random() < SHARE and string.sub(text, 1, 1) == "{" then
    -- a field that the client states itself comes later, and counts
    body:setBytes('{"return_token_ids":true,' .. string.sub(text, 2))
    tapped:set("paceline", "tokens", "yes")
  end
end

function envoy_on_response(handle)
  local tapped = handle:streamInfo():dynamicMetadata():get("paceline")
  local headers = handle:headers()
  local status = headers:get(":status")
  local failed = tonumber(status) >= 500 -- below, the request is at fault
  if tapped == nil or status ~= "200" and not failed then return end
  local drafter = headers:get("x-paceline-drafter") or ""
  local route = headers:get("x-paceline-route") or ""
  local most = tapped["tokens"] == "yes" and TOKEN_BYTES or COUNT_BYTES
  local answer, size, first = "", 0, now(handle)
  if not failed then answer, size, first = read(handle, most) end
  handle:httpCall("taps", {
    [":method"] = "POST", [":path"] = "/", [":authority"] = "paceline",
    ["x-id"] = tapped["id"], ["x-app"] = tapped["app"], ["x-region"] = tapped["region"],
    ["x-session"] = tapped["session"], ["x-tokens"] = tapped["tokens"],
    ["x-drafter"] = drafter, ["x-route"] = route, ["x-size"] = tostring(size),
    ["x-status"] = status,
    ["x-start"] = tapped["start"], ["x-first"] = first, ["x-end"] = now(handle),
    ["x-request-bytes"] = tostring(#tapped["request"]),
  }, tapped["request"] .. answer, 1000, true)
end
