import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, sdk, newSandbox, until } from './kit.mjs'

const run = `lifecycle-${process.pid}-${Date.now()}`

test('create gives a running sandbox with what was asked for', async () => {
  const sandbox = await newSandbox({
    timeoutMs: 120_000,
    metadata: { run, purpose: 'create' },
    envs: { GREETING: 'hello from create' },
  })
  assert.match(sandbox.sandboxId, /^i[a-z0-9]{20}$/)
  assert.equal(await sandbox.isRunning(), true)
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.equal(info.state, 'running')
  assert.equal(info.name, 'base')
  assert.deepEqual(info.metadata, { run, purpose: 'create' })
  assert.equal(info.cpuCount, 2)
  assert.equal(info.memoryMB, 1024)
  assert.deepEqual(info.lifecycle, { onTimeout: 'kill', autoResume: false })
  const seconds = (info.endAt - info.startedAt) / 1000
  assert.ok(seconds > 110 && seconds < 130, `deadline ${seconds} s after the start`)
  const { stdout } = await sandbox.commands.run('echo "$GREETING"')
  assert.equal(stdout, 'hello from create\n')
})

test('the default deadline is five minutes', async () => {
  const sandbox = await newSandbox({ metadata: { run, purpose: 'default' } })
  const info = await sandbox.getInfo()
  const seconds = (info.endAt - info.startedAt) / 1000
  assert.ok(seconds > 290 && seconds < 310, `deadline ${seconds} s after the start`)
})

test('connect reaches the same sandbox and never shortens its life', async () => {
  const first = await newSandbox({ timeoutMs: 600_000, metadata: { run, purpose: 'connect' } })
  await first.files.write('note.txt', 'written by the first client')
  const before = await first.getInfo()
  const second = await Sandbox.connect(first.sandboxId, { timeoutMs: 60_000 })
  assert.equal(second.sandboxId, first.sandboxId)
  assert.equal(await second.files.read('note.txt'), 'written by the first client')
  const after = await second.getInfo()
  assert.ok(after.endAt >= before.endAt, `${after.endAt.toISOString()} is before ${before.endAt.toISOString()}`)
  await Sandbox.connect(first.sandboxId, { timeoutMs: 1_200_000 })
  const extended = await second.getInfo()
  assert.ok(extended.endAt - before.endAt > 300_000, 'a longer timeout extends')
})

test('setTimeout moves the deadline both ways, and the sandbox ends at it', async () => {
  const sandbox = await newSandbox({ timeoutMs: 60_000, metadata: { run, purpose: 'timeout' } })
  await sandbox.setTimeout(3_600_000)
  const long = await sandbox.getInfo()
  assert.ok(long.endAt - Date.now() > 3_000_000)
  await sandbox.setTimeout(1_000)
  await until('the sandbox ended', async () => !(await sandbox.isRunning()))
  await assert.rejects(sandbox.getInfo(), sdk.NotFoundError)
  await assert.rejects(sandbox.commands.run('true'), sdk.NotFoundError)
})

test('a sandbox created with a short timeout ends by itself', async () => {
  const sandbox = await newSandbox({ timeoutMs: 1_000, metadata: { run, purpose: 'short' } })
  await until('the sandbox is gone', async () => (await pages({ metadata: { run, purpose: 'short' } })).length === 0)
  assert.equal(await sandbox.isRunning(), false)
})

test('list filters by metadata, whatever characters it has', async () => {
  const odd = { run, key: 'a b+c&d=e%20/ü?', 'key with space & =': '1' }
  const [one] = await Promise.all([
    newSandbox({ metadata: odd }),
    newSandbox({ metadata: { run, key: 'other' } }),
  ])
  assert.deepEqual(ids(await pages({ metadata: odd })), [one.sandboxId])
  assert.deepEqual(await pages({ metadata: { run, key: 'neither' } }), [])
  const [entry] = await pages({ metadata: odd })
  assert.deepEqual(entry.metadata, odd)
  assert.equal(entry.state, 'running')
})

test('list pages through everything once, newest first or oldest first', async () => {
  const made = []
  for (let i = 0; i < 5; i++) made.push((await newSandbox({ metadata: { run, purpose: 'pages' } })).sandboxId)
  const query = { metadata: { run, purpose: 'pages' } }
  const paginator = Sandbox.list({ query, limit: 2 })
  assert.equal(paginator.hasNext, true)
  const sizes = []
  const seen = []
  while (paginator.hasNext) {
    const page = await paginator.nextItems()
    sizes.push(page.length)
    seen.push(...ids(page))
  }
  assert.deepEqual(sizes, [2, 2, 1])
  assert.deepEqual(seen, made.toReversed())
  assert.deepEqual(ids(await pages(query, { order: 'asc', limit: 3 })), made)
  await assert.rejects(paginator.nextItems(), /No more items/)
})

test('list filters by state, template and start', async () => {
  const query = { metadata: { run, purpose: 'states' } }
  const [running, paused] = await Promise.all([newSandbox(query), newSandbox(query)])
  await paused.pause()
  assert.deepEqual(ids(await pages({ ...query, state: ['running'] })), [running.sandboxId])
  assert.deepEqual(ids(await pages({ ...query, state: ['paused'] })), [paused.sandboxId])
  assert.equal((await pages({ ...query, state: ['running', 'paused'] })).length, 2)
  assert.equal((await pages({ ...query, template: 'base' })).length, 2)
  assert.equal((await pages({ ...query, template: 'no-such-template' })).length, 0)
  assert.equal((await pages({ ...query, startedAfter: new Date(Date.now() + 3_600_000) })).length, 0)
  assert.equal((await pages({ ...query, startedAfter: new Date(Date.now() - 3_600_000) })).length, 2)
})

test('kill ends a sandbox once', async () => {
  const sandbox = await newSandbox({ metadata: { run, purpose: 'kill' } })
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await Sandbox.kill(sandbox.sandboxId), false)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), sdk.NotFoundError)
  await assert.rejects(sandbox.setTimeout(1000), sdk.NotFoundError)
})

test('metrics tell what a sandbox uses', async () => {
  const sandbox = await newSandbox({ metadata: { run, purpose: 'metrics' } })
  const [sample] = await until('there is a sample', async () => {
    const samples = await sandbox.getMetrics()
    return samples.length > 0 && samples
  })
  assert.equal(sample.cpuCount, 2)
  assert.ok(sample.memUsed > 0 && sample.memUsed <= sample.memTotal, `${sample.memUsed} of ${sample.memTotal} bytes`)
  assert.ok(sample.diskTotal > 0)
  assert.ok(!Number.isNaN(sample.timestamp.getTime()))
})

test('many creates at once all work and differ', async () => {
  const sandboxes = await Promise.all(
    Array.from({ length: 8 }, () => newSandbox({ metadata: { run, purpose: 'burst' } })),
  )
  assert.equal(new Set(ids(sandboxes)).size, 8)
  const words = await Promise.all(
    sandboxes.map(async (s) => (await s.commands.run('cat /proc/sys/kernel/random/uuid; cat /etc/machine-id; hostname')).stdout),
  )
  const lines = words.flatMap((text) => text.trim().split('\n'))
  assert.equal(lines.length, 24)
  assert.equal(new Set(lines).size, 24, 'random, machine id and host name differ between sandboxes')
})

const ids = (list) => list.map((s) => s.sandboxId)

async function pages(query, opts = {}) {
  const paginator = Sandbox.list({ query, ...opts })
  const all = []
  while (paginator.hasNext) all.push(...(await paginator.nextItems()))
  return all
}
