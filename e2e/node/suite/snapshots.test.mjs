import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, sdk, newSandbox, owned, until, startCounter, askCounter } from './kit.mjs'

const unique = `${process.pid}-${Date.now()}`

test('a snapshot of a running sandbox starts new ones, and the original goes on', async () => {
  const original = await newSandbox({ timeoutMs: 600_000 })
  const before = await startCounter(original)
  await original.files.write('state.txt', 'at the snapshot')
  const snapshot = await original.createSnapshot()
  assert.ok(snapshot.snapshotId)
  const going = await askCounter(original)
  assert.equal(going.word, before.word, 'the original goes on')
  await original.files.write('state.txt', 'after the snapshot')

  const [one, two] = await Promise.all([
    newSandbox(snapshot.snapshotId, { timeoutMs: 600_000 }),
    newSandbox(snapshot.snapshotId, { timeoutMs: 600_000 }),
  ])
  for (const sandbox of [one, two]) {
    assert.equal(await sandbox.files.read('state.txt'), 'at the snapshot')
    const counter = await until('the counter goes on in it', () => askCounter(sandbox).catch(() => null))
    assert.equal(counter.word, before.word)
    assert.ok(counter.count >= before.count)
  }
  await one.files.write('state.txt', 'one')
  assert.equal(await two.files.read('state.txt'), 'at the snapshot')
  assert.equal(await original.files.read('state.txt'), 'after the snapshot')
  const identities = await Promise.all(
    [original, one, two].map(async (s) => (await s.commands.run('cat /etc/machine-id; hostname; cat /proc/sys/kernel/random/uuid')).stdout.trim().split('\n')),
  )
  assert.equal(new Set(identities.flat()).size, 9, 'machine id, host name and random differ')

  for (const sandbox of [one, two]) await sandbox.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
  await assert.rejects(Sandbox.create(snapshot.snapshotId), /404.*not found/)
  assert.equal((await askCounter(original)).word, before.word, 'the original outlives its snapshot')
})

test('snapshots have names and are listed', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  await sandbox.files.write('named.txt', 'named')
  const name = `snap-${unique}`
  const named = await sandbox.createSnapshot({ name })
  const plain = await sandbox.createSnapshot()
  assert.ok(named.names.some((n) => n.includes(name)), JSON.stringify(named))
  const mine = await all(sandbox.listSnapshots())
  assert.deepEqual(new Set(mine.map((s) => s.snapshotId)), new Set([named.snapshotId, plain.snapshotId]))
  const paged = Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId, limit: 1 })
  assert.equal((await paged.nextItems()).length, 1)
  assert.equal(paged.hasNext, true)
  assert.equal((await all(paged)).length, 1)
  const byName = await newSandbox(named.names[0], { timeoutMs: 600_000 })
  assert.equal(await byName.files.read('named.txt'), 'named')
  await byName.kill()
  for (const s of [named, plain]) assert.equal(await Sandbox.deleteSnapshot(s.snapshotId), true)
  assert.deepEqual(await all(sandbox.listSnapshots()), [])
})

test('a paused sandbox can be snapshotted and stays paused', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  const { word } = await startCounter(sandbox)
  await sandbox.pause()
  const snapshot = await sandbox.createSnapshot()
  assert.equal((await sandbox.getInfo()).state, 'paused')
  const copy = await newSandbox(snapshot.snapshotId, { timeoutMs: 600_000 })
  assert.equal((await until('it answers', () => askCounter(copy).catch(() => null))).word, word)
  await sandbox.connect()
  assert.equal((await askCounter(sandbox)).word, word)
  await copy.kill()
  assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
})

test('fork makes several at once', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000, envs: { FORKED: 'from here' } })
  const { word } = await startCounter(sandbox)
  const forks = await sandbox.fork({ count: 3, timeoutMs: 600_000 })
  assert.equal(forks.length, 3)
  for (const fork of forks) {
    assert.ok(fork instanceof Sandbox, String(fork))
    owned(fork)
    assert.equal((await until('it answers', () => askCounter(fork).catch(() => null))).word, word)
    assert.equal((await fork.commands.run('echo $FORKED')).stdout, 'from here\n')
  }
  assert.equal(new Set([sandbox, ...forks].map((s) => s.sandboxId)).size, 4)
  await assert.rejects(Sandbox.fork('i00000000000000000000'), sdk.NotFoundError)
})

async function all(paginator) {
  const items = []
  while (paginator.hasNext) items.push(...(await paginator.nextItems()))
  return items
}
