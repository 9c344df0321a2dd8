# A worker of a group with redis-rb. Usage: ruby worker.rb PORT. A line of JSON is a call, [name, argument …]; its
# result is a line as well. It ends with its input.
require "json"
require "redis"

GROUP = "packers"
FIELD = "item"
READ_MAX = 2
CLIENT = Redis.new(host: "127.0.0.1", port: ARGV[0].to_i, reconnect_attempts: 0)

def pairs(rows) = rows.map { |id, fields| [id, fields[FIELD]] }

CALLS = {
  "publish" => ->(stream, item) { CLIENT.xadd(stream, { FIELD => item }) },
  "createGroup" => ->(stream) { CLIENT.xgroup(:create, stream, GROUP, "0") },
  "read" => lambda do |stream, consumer, start, block_ms|
    pairs(CLIENT.xreadgroup(GROUP, consumer, stream, start, count: READ_MAX, block: block_ms)[stream] || [])
  end,
  "claim" => ->(stream, consumer) { pairs(CLIENT.xautoclaim(stream, GROUP, consumer, 0, "0-0")["entries"]) },
  "acknowledge" => ->(stream, id) { CLIENT.xack(stream, GROUP, id) },
  "pending" => ->(stream) { CLIENT.xpending(stream, GROUP)["size"] },
}.freeze

$stdout.sync = true
$stdin.each_line do |line|
  name, *given = JSON.parse(line)
  puts JSON.generate(CALLS.fetch(name).call(*given))
end
