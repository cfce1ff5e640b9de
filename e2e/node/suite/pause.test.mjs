import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Sandbox, sdk, newSandbox, until, send, startCounter, askCounter } from './kit.mjs'

const state = async (sandbox) => (await Sandbox.getInfo(sandbox.sandboxId)).state

test('pause keeps processes and files; connect brings them back', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  const before = await startCounter(sandbox)
  await sandbox.files.write('kept.txt', 'kept')
  assert.equal(await sandbox.pause(), true)
  assert.equal(await state(sandbox), 'paused')
  assert.equal(await Sandbox.pause(sandbox.sandboxId), false, 'a second pause says it is paused already')
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await state(sandbox), 'paused', 'asking did not wake it')
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal(again.sandboxId, sandbox.sandboxId)
  assert.equal(await state(sandbox), 'running')
  const after = await askCounter(again)
  assert.equal(after.word, before.word)
  assert.equal(after.pid, before.pid)
  assert.ok(after.count >= before.count, `${after.count} after ${before.count}`)
  await until('it counts on', async () => (await askCounter(again)).count > after.count)
  assert.equal(await again.files.read('kept.txt'), 'kept')
  assert.equal((await sandbox.commands.run('echo old handle works')).stdout, 'old handle works\n')
})

test('files and memory survive pause after pause', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  const { word } = await startCounter(sandbox)
  for (let round = 1; round <= 4; round++) {
    await sandbox.files.write(`round-${round}.txt`, `round ${round}`)
    await sandbox.pause()
    await sandbox.connect()
    assert.equal((await askCounter(sandbox)).word, word)
    for (let i = 1; i <= round; i++) assert.equal(await sandbox.files.read(`round-${i}.txt`), `round ${i}`)
  }
})

test('a running command is still attached to after a pause', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  const handle = await sandbox.commands.run('read line; echo "heard $line"', { background: true, stdin: true, timeoutMs: 0 })
  await handle.disconnect()
  await sandbox.pause()
  await sandbox.connect()
  const attached = await sandbox.commands.connect(handle.pid)
  await sandbox.commands.sendStdin(handle.pid, 'after the pause\n')
  assert.equal((await attached.wait()).stdout, 'heard after the pause\n')
})

test('the deadline pauses instead of killing, and traffic resumes', async () => {
  const sandbox = await newSandbox({
    timeoutMs: 600_000,
    lifecycle: { onTimeout: 'pause', autoResume: true },
  })
  const before = await startCounter(sandbox)
  assert.deepEqual((await sandbox.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true })
  await sandbox.setTimeout(1_000)
  await until('it is paused', async () => (await state(sandbox)) === 'paused')
  const after = await askCounter(sandbox)
  assert.equal(after.word, before.word)
  assert.equal(await state(sandbox), 'running')
})

test('one wake for many callers', async () => {
  const sandbox = await newSandbox({
    timeoutMs: 600_000,
    lifecycle: { onTimeout: 'pause', autoResume: true },
  })
  const { word } = await startCounter(sandbox)
  await sandbox.pause()
  const answers = await Promise.all(Array.from({ length: 20 }, () => askCounter(sandbox)))
  assert.deepEqual(new Set(answers.map((a) => a.word)), new Set([word]))
})

test('SDK calls wake it as well', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  await sandbox.files.write('f', 'before')
  await sandbox.pause()
  assert.equal(await sandbox.files.read('f'), 'before')
  await sandbox.pause()
  assert.equal((await sandbox.commands.run('cat f')).stdout, 'before')
})

test('without autoResume traffic does not wake', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000, lifecycle: { onTimeout: 'pause' } })
  await startCounter(sandbox)
  await sandbox.setTimeout(1_000)
  await until('it is paused', async () => (await state(sandbox)) === 'paused')
  const answer = await send(sandbox.getHost(8000))
  assert.equal(answer.status, 502)
  assert.deepEqual(answer.json(), { sandboxId: sandbox.sandboxId, message: 'The sandbox was not found', code: 502 })
  assert.equal(await state(sandbox), 'paused')
  await assert.rejects(sandbox.commands.run('true'), sdk.NotFoundError)
})

test('a pause without memory keeps files and starts anew', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000, envs: { KEPT: 'environment' } })
  await startCounter(sandbox)
  await sandbox.files.write('kept.txt', 'kept')
  assert.equal(await sandbox.pause({ keepMemory: false }), true)
  await sandbox.connect()
  assert.equal(await sandbox.files.read('kept.txt'), 'kept')
  assert.equal((await sandbox.commands.run('echo $KEPT')).stdout, 'environment\n')
  const answer = await send(sandbox.getHost(8000))
  assert.equal(answer.status, 502, 'the counter is gone')
})

test('a paused sandbox is killed like a running one', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  await sandbox.pause()
  assert.equal(await sandbox.kill(), true)
  await assert.rejects(sandbox.getInfo(), sdk.NotFoundError)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId), sdk.NotFoundError)
})

test('time and randomness are right after a resume', async () => {
  const sandbox = await newSandbox({ timeoutMs: 600_000 })
  await sandbox.pause()
  await sandbox.connect()
  const { stdout } = await sandbox.commands.run('date +%s')
  assert.ok(Math.abs(Number(stdout) - Date.now() / 1000) < 30, `inside it is ${stdout}`)
})
