import assert from 'node:assert/strict'
import { before, test } from 'node:test'
import { Sandbox, sdk, newSandbox, until } from './kit.mjs'

let sandbox
before(async () => {
  sandbox = await newSandbox({ timeoutMs: 600_000 })
})

// terminal opens a PTY and collects what it shows.
async function terminal(opts = {}) {
  let screen = ''
  const decoder = new TextDecoder()
  const handle = await sandbox.pty.create({
    cols: 80,
    rows: 24,
    timeoutMs: 0,
    onData: (data) => void (screen += decoder.decode(data, { stream: true })),
    ...opts,
  })
  return {
    handle,
    pid: handle.pid,
    type: (text) => sandbox.pty.sendInput(handle.pid, new TextEncoder().encode(text)),
    shows: (pattern) => until(`the terminal shows ${pattern}`, () => pattern.test(screen)),
  }
}

test('a terminal of the size asked for, resized', async () => {
  const t = await terminal()
  await t.type('stty size\n')
  await t.shows(/\b24 80\b/)
  await sandbox.pty.resize(t.pid, { cols: 132, rows: 43 })
  await t.type('stty size\n')
  await t.shows(/\b43 132\b/)
  await t.type('tty; echo "term=$TERM user=$(id -un)"\n')
  await t.shows(/\/dev\/pts\/\d+/)
  await t.shows(/term=xterm-256color user=user/)
  assert.equal(await sandbox.pty.kill(t.pid), true)
  await t.handle.wait().catch((error) => assert.ok(error instanceof sdk.CommandExitError, String(error)))
  assert.equal(await sandbox.pty.kill(t.pid), false)
})

test('the exit code of the shell', async () => {
  const t = await terminal()
  await t.type('exit 7\n')
  const error = await t.handle.wait().catch((e) => e)
  assert.ok(error instanceof sdk.CommandExitError, String(error))
  assert.equal(error.exitCode, 7)
})

test('user, folder and environment', async () => {
  const t = await terminal({ user: 'root', cwd: '/etc', envs: { COLOUR: 'blue' } })
  await t.type('echo "$(id -un):$PWD:$COLOUR"\n')
  await t.shows(/root:\/etc:blue/)
  await t.type('exit\n')
  await t.handle.wait()
})

test('keys reach programs: interrupt ends one, the shell goes on', async () => {
  const t = await terminal()
  await t.type('sleep 5000\n')
  await until('sleep runs', async () => (await sandbox.commands.run('pgrep -fx "sleep 5000" || true')).stdout !== '')
  await t.type('\x03')
  await t.type('echo "still $((40+2))"\n')
  await t.shows(/still 42/)
  await t.type('exit 0\n')
  await t.handle.wait()
})

test('a second client takes over a terminal', async () => {
  const t = await terminal()
  await t.type('word=kept\n')
  await t.handle.disconnect()
  const other = await Sandbox.connect(sandbox.sandboxId)
  let screen = ''
  const attached = await other.pty.connect(t.pid, { onData: (data) => void (screen += Buffer.from(data).toString()) })
  await other.pty.sendInput(t.pid, new TextEncoder().encode('echo "it was $word"\n'))
  await until('the second client sees it', () => /it was kept/.test(screen))
  await other.pty.sendInput(t.pid, new TextEncoder().encode('exit\n'))
  await attached.wait()
})
