<?php
// A worker of a group with phpredis. Usage: php worker.php PORT. A line of JSON is a call, [name, argument …]; its
// result is a line as well. It ends with its input.
const GROUP = 'packers';
const FIELD = 'item';
const READ_MAX = 2;

$client = new Redis();
$client->connect('127.0.0.1', (int) $argv[1]);
$client->setOption(Redis::OPT_READ_TIMEOUT, -1);

function pairs(array|false $rows): array
{
    return array_map(fn ($id, $fields) => [$id, $fields[FIELD]], array_keys($rows ?: []), array_values($rows ?: []));
}

$calls = [
    'publish' => fn ($stream, $item) => $client->xAdd($stream, '*', [FIELD => $item]),
    'createGroup' => fn ($stream) => $client->xGroup('CREATE', $stream, GROUP, '0') ? 'OK' : 'no',
    'read' => function ($stream, $consumer, $start, $blockMs) use ($client) {
        $block = $blockMs === null ? [] : [$blockMs];
        $found = $client->xReadGroup(GROUP, $consumer, [$stream => $start], READ_MAX, ...$block);
        return pairs($found[$stream] ?? []);
    },
    'claim' => fn ($stream, $consumer) => pairs($client->rawCommand('XAUTOCLAIM', $stream, GROUP, $consumer, 0, '0-0')
        ? $client->xClaim($stream, GROUP, $consumer, 0, array_column($client->xPending($stream, GROUP, '-', '+', 100), 0))
        : []),
    'acknowledge' => fn ($stream, $id) => $client->xAck($stream, GROUP, [$id]),
    'pending' => fn ($stream) => $client->xPending($stream, GROUP)[0],
];
while (($line = fgets(STDIN)) !== false) {
    $given = json_decode($line);
    echo json_encode($calls[array_shift($given)](...$given), JSON_UNESCAPED_UNICODE), "\n";
}
