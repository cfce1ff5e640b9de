import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { Sandbox, sdk, newSandbox, until, sleep } from './kit.mjs'

let sandbox
before(async () => {
  sandbox = await newSandbox({ timeoutMs: 600_000, envs: { FROM_CREATE: 'create', OVERRIDDEN: 'create' } })
})

test('a foreground command gives its output', async () => {
  const result = await sandbox.commands.run('echo out; echo err >&2')
  assert.equal(result.exitCode, 0)
  assert.equal(result.stdout, 'out\n')
  assert.equal(result.stderr, 'err\n')
})

test('a failing command rejects with exit code and output', async () => {
  const error = await sandbox.commands.run('echo partial; echo reason >&2; exit 3').catch((e) => e)
  assert.ok(error instanceof sdk.CommandExitError, String(error))
  assert.equal(error.exitCode, 3)
  assert.equal(error.stdout, 'partial\n')
  assert.equal(error.stderr, 'reason\n')
})

test('a command ended by a signal says so', async () => {
  const error = await sandbox.commands.run('kill -9 $$').catch((e) => e)
  assert.ok(error instanceof sdk.CommandExitError, String(error))
  assert.notEqual(error.exitCode, 0)
})

test('output arrives while the command runs', async () => {
  const lines = []
  let secondSeen
  const gone = new Promise((resolve) => (secondSeen = resolve))
  const handle = await sandbox.commands.run('echo first; read line; echo "second $line"', {
    background: true,
    stdin: true,
    onStdout: (data) => {
      lines.push(data)
      if (data.includes('second')) secondSeen()
    },
  })
  await until('the first line is there', () => lines.join('').includes('first\n'))
  await handle.sendStdin('go on\n')
  await gone
  assert.equal((await handle.wait()).stdout, 'first\nsecond go on\n')
})

test('environment: request over create, with the defaults of a login', async () => {
  const { stdout } = await sandbox.commands.run('echo $FROM_CREATE/$OVERRIDDEN/$ONLY_HERE/$HOME/$USER', {
    envs: { OVERRIDDEN: 'request', ONLY_HERE: 'a "quoted" $word' },
  })
  assert.equal(stdout, 'create/request/a "quoted" $word//home/user/user\n')
})

test('working directory', async () => {
  assert.equal((await sandbox.commands.run('pwd')).stdout, '/home/user\n')
  assert.equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
  await assert.rejects(sandbox.commands.run('pwd', { cwd: '/no/such/place' }), sdk.InvalidArgumentError)
})

test('users: user by default, root when asked, sudo without a password', async () => {
  assert.equal((await sandbox.commands.run('id -un')).stdout, 'user\n')
  assert.equal((await sandbox.commands.run('id -un; echo $HOME', { user: 'root' })).stdout, 'root\n/root\n')
  assert.equal((await sandbox.commands.run('sudo -n id -un')).stdout, 'root\n')
  await assert.rejects(sandbox.commands.run('true', { user: 'nobody-here' }), /nobody-here/)
})

test('background commands: pid, list, wait', async () => {
  const handle = await sandbox.commands.run('sleep 0.2; echo done', { background: true })
  assert.ok(handle.pid > 0)
  const entry = (await sandbox.commands.list()).find((p) => p.pid === handle.pid)
  assert.ok(entry, 'it is in the list')
  assert.equal(entry.cmd, '/bin/bash')
  assert.deepEqual(entry.args, ['-l', '-c', 'sleep 0.2; echo done'])
  const result = await handle.wait()
  assert.equal(result.stdout, 'done\n')
  assert.ok(!(await sandbox.commands.list()).some((p) => p.pid === handle.pid), 'it has left the list')
})

test('kill ends a command once', async () => {
  const handle = await sandbox.commands.run('sleep 1000', { background: true })
  assert.equal(await sandbox.commands.kill(handle.pid), true)
  const error = await handle.wait().catch((e) => e)
  assert.ok(error instanceof sdk.CommandExitError, String(error))
  await until('it left the list', async () => !(await sandbox.commands.list()).some((p) => p.pid === handle.pid))
  assert.equal(await sandbox.commands.kill(handle.pid), false)
})

test('stdin: lines, bytes and its end', async () => {
  const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
  await handle.sendStdin('one\n')
  await sandbox.commands.sendStdin(handle.pid, 'two\n')
  await sandbox.commands.closeStdin(handle.pid)
  assert.equal((await handle.wait()).stdout, 'one\ntwo\n')
})

test('a command without stdin sees its end at once', async () => {
  assert.equal((await sandbox.commands.run('cat; echo end')).stdout, 'end\n')
})

test('another client attaches to a running command', async () => {
  const handle = await sandbox.commands.run('read a; echo "got $a"; read b; echo "got $b"', {
    background: true,
    stdin: true,
  })
  await handle.disconnect()
  const other = await Sandbox.connect(sandbox.sandboxId)
  const attached = await other.commands.connect(handle.pid)
  await other.commands.sendStdin(handle.pid, 'x\n')
  await other.commands.sendStdin(handle.pid, 'y\n')
  assert.equal((await attached.wait()).stdout, 'got x\ngot y\n')
  await assert.rejects(other.commands.connect(999_999), sdk.NotFoundError)
})

test('a command that outlives its timeout is killed', async () => {
  await assert.rejects(sandbox.commands.run('exec sleep 98765', { timeoutMs: 500 }), sdk.TimeoutError)
  await until('it is gone', async () => (await sandbox.commands.run('pgrep -fx "sleep 98765" || true')).stdout === '')
})

test('a disconnected client does not end the command', async () => {
  const handle = await sandbox.commands.run('sleep 1; echo survived > /tmp/survived', { background: true })
  await handle.disconnect()
  await until('the file is there', () => sandbox.files.exists('/tmp/survived'))
})

test('much output arrives whole and in order', async () => {
  const { stdout } = await sandbox.commands.run('seq 1 500000')
  assert.equal(stdout.length, 3_388_895)
  assert.equal(stdout.slice(-14), '499999\n500000\n')
})

test('characters of several bytes survive', async () => {
  const { stdout } = await sandbox.commands.run(`python3 -c 'print("žluťoučký kůň 😀" * 20000, end="")'`)
  assert.equal(stdout, 'žluťoučký kůň 😀'.repeat(20000))
})

test('many commands at once', async () => {
  const results = await Promise.all(
    Array.from({ length: 20 }, (_, i) => sandbox.commands.run(`sleep 0.1; echo ${i}`)),
  )
  assert.deepEqual(
    results.map((r) => r.stdout.trim()),
    Array.from({ length: 20 }, (_, i) => String(i)),
  )
})

test('children of an ended command go on and are reaped', async () => {
  await sandbox.commands.run('(setsid sleep 2 >/dev/null 2>&1 &); true')
  await sleep(2500)
  const { stdout } = await sandbox.commands.run('ps -eo stat= | grep -c ^Z || true', { user: 'root' })
  assert.equal(stdout.trim(), '0', 'no zombies')
})
