import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, sdk, newSandbox } from './kit.mjs'

const missing = 'i00000000000000000000'

test('a wrong key is refused', async () => {
  const apiKey = `e2b_${'0'.repeat(40)}`
  await assert.rejects(Sandbox.create({ apiKey }), sdk.AuthenticationError)
  await assert.rejects(Sandbox.list({ apiKey }).nextItems(), sdk.AuthenticationError)
  await assert.rejects(Sandbox.kill(missing, { apiKey }), sdk.AuthenticationError)
})

test('an unknown template is named', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), /404.*no-such-template/)
})

test('an unknown sandbox is not found', async () => {
  await assert.rejects(Sandbox.connect(missing), sdk.NotFoundError)
  await assert.rejects(Sandbox.getInfo(missing), sdk.NotFoundError)
  await assert.rejects(Sandbox.setTimeout(missing, 1000), sdk.NotFoundError)
  await assert.rejects(Sandbox.pause(missing), sdk.NotFoundError)
  await assert.rejects(Sandbox.createSnapshot(missing), sdk.NotFoundError)
  assert.equal(await Sandbox.kill(missing), false)
})

test('a negative timeout is refused', async () => {
  await assert.rejects(Sandbox.create({ timeoutMs: -5000 }), /Timeout must be greater than 0/)
  const sandbox = await newSandbox({ timeoutMs: 60_000 })
  await assert.rejects(Sandbox.connect(sandbox.sandboxId, { timeoutMs: -1000 }), /Timeout must be greater than 0/)
  await assert.rejects(sandbox.setTimeout(-1000))
  assert.equal(await sandbox.isRunning(), true)
})

test('a path with a NUL byte is refused', async () => {
  const sandbox = await newSandbox({ timeoutMs: 60_000 })
  await assert.rejects(sandbox.files.read('a\0b'), sdk.InvalidArgumentError)
  await assert.rejects(sandbox.files.write('a\0b', 'x'), sdk.InvalidArgumentError)
  await assert.rejects(sandbox.files.getInfo('a\0b'), sdk.InvalidArgumentError)
})

test('paths cannot leave the sandbox', async () => {
  const sandbox = await newSandbox({ timeoutMs: 60_000 })
  const inside = await sandbox.files.read('/etc/hostname')
  assert.equal(await sandbox.files.read('../../../../../../../../etc/hostname'), inside)
  await sandbox.commands.run('ln -s ../../../../../../../../../../etc/hostname out && ln -s /proc/1/root/etc/hostname out2')
  assert.equal(await sandbox.files.read('out'), inside)
  assert.equal(await sandbox.files.read('out2', { user: 'root' }), inside)
})

test('network rules that cannot be kept are refused, not ignored', async () => {
  await assert.rejects(newSandbox({ network: { allowOut: ['example.org'] } }), /400|denyOut|domain/i)
})
