// The official command line, unmodified. It runs where it is installed: beside
// the newest client.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { createRequire } from 'node:module'
import path from 'node:path'
import { before, test } from 'node:test'
import { newSandbox } from '../suite/kit.mjs'

const require = createRequire(path.join(process.cwd(), 'package.json'))
const entry = path.join(path.dirname(require.resolve('@e2b/cli/package.json')), 'dist/index.js')

function e2b(...args) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [entry, ...args], { stdio: ['ignore', 'pipe', 'pipe'] })
    let stdout = ''
    let stderr = ''
    child.stdout.on('data', (data) => (stdout += data))
    child.stderr.on('data', (data) => (stderr += data))
    child.on('error', reject)
    child.on('close', (code) => resolve({ code, stdout, stderr }))
  })
}

let sandbox
before(async () => {
  sandbox = await newSandbox({ timeoutMs: 600_000, metadata: { from: 'cli' } })
})

test('sandbox list shows it', async () => {
  const { code, stdout, stderr } = await e2b('sandbox', 'list', '--format', 'json', '--metadata', 'from=cli')
  assert.equal(code, 0, stderr)
  const list = JSON.parse(stdout)
  assert.ok(list.some((s) => s.sandboxId === sandbox.sandboxId || s.sandboxID === sandbox.sandboxId), stdout)
  const table = await e2b('sandbox', 'list')
  assert.equal(table.code, 0, table.stderr)
  assert.ok(table.stdout.includes(sandbox.sandboxId), table.stdout)
})

test('sandbox exec runs a command and takes over its exit code', async () => {
  const good = await e2b('sandbox', 'exec', sandbox.sandboxId, 'echo', 'hello from the cli')
  assert.equal(good.code, 0, good.stderr)
  assert.match(good.stdout, /hello from the cli/)
  const asRoot = await e2b('sandbox', 'exec', '-u', 'root', '-c', '/etc', '-e', 'A=b', sandbox.sandboxId, 'echo "$(id -un) $PWD $A"')
  assert.match(asRoot.stdout, /root \/etc b/, asRoot.stderr)
  const bad = await e2b('sandbox', 'exec', sandbox.sandboxId, 'exit 3')
  assert.equal(bad.code, 3, bad.stdout + bad.stderr)
})
